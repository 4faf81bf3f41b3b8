"""The objects of a run, as plain dicts for the API server. Pure: no client, no clock, no I/O but a template's file.

They cannot all be made at once: children carry the uid that the server gave to the root, and workers are told the
address that it gave to the Service. So :func:`run_objects` returns a :class:`RunObjects`, which is asked step by step::

    objects = run_objects(spec, owner, pods, namespace=namespace, capabilities=capabilities)  # raises InvalidSettings
    root = create(objects.root())
    *_, service = [create(each) for each in objects.first(uid_of(root), tls)]
    for each in objects.rest(uid_of(root), service["spec"]["clusterIP"]):
        create(each)

What each is for: :mod:`elastic_runtime.run.runobjects`.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from elastic_runtime.documents import to_json, to_plain
from elastic_runtime.net.certificates import AUTHORITY_KEY
from elastic_runtime.pool.pods.objects import POOL_LABEL
from elastic_runtime.run import runobjects
from elastic_runtime.run.join import check_networks
from elastic_runtime.run.runobjects import ObjectNames, Part
from elastic_runtime.run.spec import RunSpec
from elastic_training.clusters.kubernetes.manifests import pod
from elastic_training.identity.ownership import read_owner
from elastic_training.kubernetes_syntax import safe_label_value
from elastic_training.redaction.values import redacted
from elastic_training.settings.pods import Pods

Manifest = dict[str, Any]

MAX_LAUNCHERS = 20
"""Launcher pods that may be lost before Kubernetes gives the Job up."""
NOT_KNOWN_YET = "(given by the API server)"
Mutate = Callable[[Manifest, str, str], Manifest]
"""Function that changes a pod template, given the name and namespace of its object; see :mod:`.mutation`."""


def _as_it_is(template: Manifest, _name: str, _namespace: str) -> Manifest:
    return template


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of the API server that matter here."""

    disruption_budgets: bool = True
    """``policy/v1``: Kubernetes 1.21 and later."""


@dataclass(frozen=True, slots=True)
class RunObjects:
    """The manifests of one run."""

    spec: RunSpec
    owner: str
    pods: Pods
    namespace: str
    capabilities: Capabilities = field(default_factory=Capabilities)
    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Credentials of the checkpoint store, as variables of the workers."""
    mutate: Mutate = _as_it_is
    pool: pod.InPool | None = None
    """Whose workers the run has; None: its own."""

    @property
    def _names(self) -> ObjectNames:
        return ObjectNames(self.spec.name)

    def root(self) -> Manifest:
        """The ConfigMap that owns all others; without COMPLETE and LEASE."""
        root = self._object("v1", "ConfigMap", self._names.root, Part.ROOT)
        root["metadata"]["annotations"] = {runobjects.OWNER: self.owner, runobjects.PODS: pods_digest(self.pods)}
        # Its annotations change all the time, what is to be run never does.
        spec = replace(self.spec, scripts=self.spec.scripts.slip()) if self.spec.scripts else self.spec
        return {**root, "immutable": True, "data": {runobjects.SPEC_KEY: to_json(spec)}}

    def first(self, root_uid: str, tls: Mapping[str, bytes]) -> tuple[Manifest, ...]:
        """Status, Secrets, the launcher's Service, and Jupyter's where it was asked for.

        Args:
            root_uid: as the server says.
            tls: contents by name of :func:`elastic_runtime.net.certificates.create`'s files, and of others of the
                Secret.
        """
        service = {
            "selector": self._selector(Part.LAUNCHER),
            "ports": [
                {"name": name, "port": port, "targetPort": port, "protocol": "TCP"}
                for name, port in pod.ports(self.spec).items()
            ],
        }
        secrets = [self._secret(self._names.tls, Part.TLS, root_uid, tls)]
        if self.credentials:
            variables = {name: value.encode() for name, value in self.credentials.items()}
            secrets.append(self._secret(self._names.store, Part.STORE, root_uid, variables))
        return (
            self._object("v1", "ConfigMap", self._names.status, Part.STATUS, root_uid),
            *secrets,
            {**self._object("v1", "Service", self._names.launcher, Part.LAUNCHER, root_uid), "spec": service},
            *self._jupyter_service(root_uid),
        )

    def _secret(self, name: str, part: Part, root_uid: str, content: Mapping[str, bytes]) -> Manifest:
        return opaque(self._object("v1", "Secret", name, part, root_uid), content)

    def rest(self, root_uid: str, launcher_address: str) -> tuple[Manifest, ...]:
        """NetworkPolicy, PodDisruptionBudget (where served), Job, ReplicaSets: as they are best created.

        No pod before the network is closed around it, and no worker that would wait for a launcher.

        Args:
            root_uid: as the server says.
            launcher_address: the Service's clusterIP.
        """
        found = [self._network_policy(root_uid), *self._machines_policy(root_uid)]
        if self.pool:
            return (*found, self._launcher(root_uid))
        if self.capabilities.disruption_budgets:
            found.append(self._disruption_budget(root_uid))
        workers = self._workers(root_uid, launcher_address)
        return (*found, self._launcher(root_uid), workers, *self._jupyter(root_uid))

    def all(self) -> tuple[Manifest, ...]:
        """For a dry run: of what the server has a say in, what can be said without it."""
        address = f"{self._names.launcher}.{self.namespace}.svc"
        names = ("ca.crt", "launcher.crt", "launcher.key", "agent.crt", "agent.key")
        tls = dict.fromkeys((*names, *([AUTHORITY_KEY] if self.spec.join else [])), b"")
        return (self.root(), *self.first(NOT_KNOWN_YET, tls), *self.rest(NOT_KNOWN_YET, address))

    def _workers(self, root_uid: str, launcher_address: str) -> Manifest:
        template = pod.worker(self.spec, self.pods, launcher_address, self._store_secret)
        return self._replica_set(self._names.worker, Part.WORKER, root_uid, self.spec.workers.start, template)

    def _replica_set(self, name: str, part: Part, root_uid: str, replicas: int, template: Manifest) -> Manifest:
        # Not a StatefulSet, which never replaces a pod on a dead node.
        replica_set = {
            "replicas": replicas,
            "selector": {"matchLabels": self._selector(part)},
            "template": self._finished(template, name),
        }
        return {**self._object("apps/v1", "ReplicaSet", name, part, root_uid), "spec": replica_set}

    def _jupyter_service(self, root_uid: str) -> Iterator[Manifest]:
        if asked := self.spec.jupyter:
            port = {"name": "jupyter", "port": asked.port, "targetPort": asked.port, "protocol": "TCP"}
            service = {"selector": self._selector(Part.JUPYTER), "ports": [port]}
            yield {**self._object("v1", "Service", self._names.jupyter, Part.JUPYTER, root_uid), "spec": service}

    def _jupyter(self, root_uid: str) -> Iterator[Manifest]:
        if asked := self.spec.jupyter:
            template = pod.jupyter(self.spec, asked, self.pods, self._store_secret)
            yield self._replica_set(self._names.jupyter, Part.JUPYTER, root_uid, 1, template)

    @property
    def _store_secret(self) -> str | None:
        return self._names.store if self.credentials else None

    def _launcher(self, root_uid: str) -> Manifest:
        job = self._object("batch/v1", "Job", self._names.launcher, Part.LAUNCHER, root_uid)
        template = pod.launcher(self.spec, self.pods, self._store_secret, self.pool)
        if self.pods.queue:
            job["metadata"]["labels"][pod.QUEUE_LABEL] = self.pods.queue
        # No podFailurePolicy: with one, a pod on a dead node is not replaced until the node is back or deleted.
        return {
            **job,
            "spec": {
                "backoffLimit": MAX_LAUNCHERS,
                "template": self._finished(template, self._names.launcher),
            },
        }

    def _network_policy(self, root_uid: str) -> Manifest:
        # Gloo's and NCCL's traffic carries no authentication, and uses any port. Outwards everything is open: names,
        # the API server, checkpoints and data are anywhere.
        run = {"matchLabels": self._run_labels()}
        # A scraper may be in any namespace; it has to show a token, and reaches this port only. Jupyter, whose token
        # is as good as a shell and goes over the network as it is, is for those whom the API server lets forward it.
        metrics = pod.ports(self.spec).get("metrics")
        scraped = [{"ports": [{"port": metrics, "protocol": "TCP"}]}] if metrics else []
        ingress: list[Manifest] = [{"from": [{"podSelector": run}]}, *scraped]
        return self._policy(self._names.network, Part.NETWORK, root_uid, run, ingress)

    def _machines_policy(self, root_uid: str) -> Iterator[Manifest]:
        """For machines that join by hand: they connect to the launcher and to ranks, at any port, not to Jupyter."""
        if self.spec.join:
            parts = {"key": runobjects.PART_LABEL, "operator": "In", "values": [Part.LAUNCHER, Part.WORKER]}
            trained = {"matchLabels": self._run_labels(), "matchExpressions": [parts]}
            machines = [{"ipBlock": {"cidr": each}} for each in self.spec.join.networks]
            yield self._policy(self._names.machines, Part.MACHINES, root_uid, trained, [{"from": machines}])

    def _policy(self, name: str, part: Part, root_uid: str, pods: Manifest, ingress: list[Manifest]) -> Manifest:
        made = self._object("networking.k8s.io/v1", "NetworkPolicy", name, part, root_uid)
        return {**made, "spec": {"podSelector": pods, "policyTypes": ["Ingress"], "ingress": ingress}}

    def _disruption_budget(self, root_uid: str) -> Manifest:
        budget = {
            "maxUnavailable": 1,
            "selector": {"matchLabels": self._selector(Part.WORKER)},
            # Workers that wait for an image, or for the launcher, hold up no drain. (1.27 and later; ignored before.)
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        }
        return {
            **self._object("policy/v1", "PodDisruptionBudget", self._names.worker, Part.WORKER, root_uid),
            "spec": budget,
        }

    def _task_labels(self) -> dict[str, str]:
        """Of Airflow's deployment, and of the try that creates the run, as KubernetesPodOperator labels its pods.

        Without its ``airflow_version``, by which ``airflow kubernetes cleanup-pods`` knows what it may delete.
        """
        owner = read_owner(self.owner)
        if owner is None:
            return {}
        texts = {
            "dag_id": owner.dag_id,
            "task_id": owner.task_id,
            "run_id": owner.run_id,
            "try_number": str(owner.try_number),
        }
        if owner.map_index >= 0:
            texts["map_index"] = str(owner.map_index)
        labels = {key: safe_label_value(text) for key, text in texts.items()}
        return labels | ({runobjects.DEPLOYMENT_LABEL: owner.deployment} if owner.deployment else {})

    def _finished(self, template: Manifest, name: str) -> Manifest:
        template["metadata"]["labels"].update(self._task_labels())
        return self.mutate(template, name, self.namespace)

    def _run_labels(self) -> dict[str, str]:
        return {runobjects.RUN_LABEL: self.spec.name, runobjects.UID_LABEL: self.spec.uid}

    def _selector(self, part: Part) -> dict[str, str]:
        return {**self._run_labels(), runobjects.PART_LABEL: part.value}

    def _object(self, version: str, kind: str, name: str, part: Part, root_uid: str | None = None) -> Manifest:
        ours = runobjects.labels(self.spec.name, self.spec.uid, part)
        pool = {POOL_LABEL: self.pool.name} if self.pool else {}
        labels = {**self.pods.labels, **self._task_labels(), **pool, **ours}
        metadata: Manifest = {"name": name, "namespace": self.namespace, "labels": labels}
        if root_uid is not None:
            metadata["ownerReferences"] = owned_by(self._names.root, root_uid)
        return {"apiVersion": version, "kind": kind, "metadata": metadata}


def owned_by(root: str, uid: str) -> list[Manifest]:
    """Return the references of a child to its root, a ConfigMap of that name and uid."""
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": root, "uid": uid}
    # blockOwnerDeletion: a root that is being deleted is gone only once all of its are.
    return [{**owner, "controller": True, "blockOwnerDeletion": True}]


def opaque(secret: Manifest, content: Mapping[str, bytes]) -> Manifest:
    """Return a Secret with this content, which never changes."""
    data = {key: b64encode(each).decode() for key, each in content.items()}
    return {**secret, "type": "Opaque", "immutable": True, "data": data}


def run_objects(
    spec: RunSpec,
    owner: str,
    pods: Pods,
    *,
    namespace: str,
    capabilities: Capabilities | None = None,
    credentials: Mapping[str, str] | None = None,
    mutate: Mutate = _as_it_is,
    pool: pod.InPool | None = None,
) -> RunObjects:
    """The manifests of a run, checked whole, before any is created.

    Args:
        spec: what is to be run.
        owner: whose try of the task.
        pods: without templates, as :meth:`Pods.of_run` returns them.
        namespace: where.
        capabilities: of the API server; None: of a recent one.
        credentials: of the checkpoint store, as variables of the workers; None: the pods have their own.
        mutate: the deployment's own hook; called more than once for a template.
        pool: whose workers the run has; None: its own.

    Raises:
        InvalidSettings: a setting, or a pod template, cannot work; the image is missing.
    """
    pods.check()
    pod.check_image(pods)
    if spec.join:
        check_networks(spec.join.networks, pods=True)
    objects = RunObjects(spec, owner, pods, namespace, capabilities or Capabilities(), credentials or {}, mutate, pool)
    objects.all()
    return objects


def pods_digest(pods: Pods) -> str:
    """The same text for the same settings, in which they cannot be read."""
    return hashlib.sha256(json.dumps(to_plain(pods), sort_keys=True).encode()).hexdigest()[:16]


def render(manifests: Iterable[Manifest]) -> str:
    """Render objects as YAML for readers, without the data of Secrets and other values that look secret."""
    # Copied through JSON, or YAML would write what occurs twice as an anchor and an alias.
    shown = [json.loads(json.dumps(_without_secrets(manifest))) for manifest in manifests]
    return str(yaml.safe_dump_all(shown, sort_keys=False, width=10_000, explicit_start=True))


def _without_secrets(manifest: Manifest) -> Manifest:
    data = manifest.get("data", {})
    if manifest["kind"] == "Secret":
        data = dict.fromkeys(data, "(not shown)")
    elif runobjects.SPEC_KEY in data:
        data = {**data, runobjects.SPEC_KEY: json.dumps(redacted(json.loads(data[runobjects.SPEC_KEY])))}
    shown: Manifest = redacted({key: each for key, each in manifest.items() if key != "data"})
    return {**shown, "data": data} if "data" in manifest else shown
