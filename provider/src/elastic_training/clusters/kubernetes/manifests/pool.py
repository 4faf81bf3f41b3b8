"""The objects of a pool in pods, as plain dicts for the API server. Pure: no client, no clock, no I/O but a template's.

As of a run (:mod:`.objects`), children carry the uid that the server gave to the root, and hosts are told the address
that it gave to the keeper's Service. What each is for: :mod:`elastic_runtime.pool.pods.objects`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from elastic_runtime.documents import to_json
from elastic_runtime.pool.pods import objects
from elastic_runtime.pool.pods.objects import PoolNames, PoolPart
from elastic_runtime.pool.settings import PoolSettings
from elastic_runtime.run import runobjects
from elastic_training.clusters.kubernetes.manifests import pod, template
from elastic_training.clusters.kubernetes.manifests.objects import (
    NOT_KNOWN_YET,
    Manifest,
    Mutate,
    opaque,
    owned_by,
    pods_digest,
)
from elastic_training.clusters.kubernetes.manifests.volumes import identity, pool_certificates, worker_volumes
from elastic_training.settings.pods import Hardware, Pods, PodShape, pods_of
from elastic_training.settings.training_pool import PodPool

PODS_KEY = "pods.json"
"""Key of the root: what launchers of the pool's runs have of its :class:`~elastic_training.settings.pods.Pods`."""
_SPOT = "spot"
LEAVE = 60.0
"""Seconds from SIGTERM to the end of a host's pod: trainings of the pool may have a ``leave_grace`` of so many."""


@dataclass(frozen=True, slots=True)
class PoolObjects:
    """The manifests of one pool."""

    settings: PoolSettings
    uid: str
    """Drawn by who brings it up: it tells incarnations apart, and is in the labels of all."""
    pods: Pods
    namespace: str
    mutate: Mutate

    @property
    def _names(self) -> PoolNames:
        return PoolNames(self.settings.name)

    def root(self) -> Manifest:
        """The ConfigMap that owns all others; without COMPLETE."""
        root = self._object("v1", "ConfigMap", self._names.root, PoolPart.ROOT)
        pods = pods_digest(self.pods)
        root["metadata"]["annotations"] = {objects.SETTINGS: to_json(self.settings), runobjects.PODS: pods}
        return {**root, "immutable": True, "data": {PODS_KEY: json.dumps(launcher_settings(self.pods))}}

    def first(self, root_uid: str, tls: Mapping[str, bytes]) -> tuple[Manifest, ...]:
        """Status, Secret, and the keeper's Service.

        Args:
            root_uid: as the server says.
            tls: contents by name of :func:`elastic_runtime.net.certificates.create`'s files.
        """
        port = {"name": "pool", "port": objects.KEEPER_PORT, "targetPort": objects.KEEPER_PORT, "protocol": "TCP"}
        secret = opaque(self._object("v1", "Secret", self._names.tls, PoolPart.TLS, root_uid), tls)
        service = {"selector": self._labels(PoolPart.KEEPER), "ports": [port]}
        return (
            self._object("v1", "ConfigMap", self._names.status, PoolPart.STATUS, root_uid),
            secret,
            {**self._object("v1", "Service", self._names.keeper, PoolPart.KEEPER, root_uid), "spec": service},
        )

    def rest(self, root_uid: str, keeper: str) -> tuple[Manifest, ...]:
        """NetworkPolicy and ReplicaSets, as they are best created: no pod before the network is closed around it.

        Args:
            root_uid: as the server says.
            keeper: the Service's clusterIP.
        """
        members = {"matchLabels": {objects.POOL_LABEL: self.settings.name}}
        policy = {
            "podSelector": members,
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": members}]}],
        }
        network = self._object("networking.k8s.io/v1", "NetworkPolicy", self._names.network, PoolPart.NETWORK, root_uid)
        return (
            {**network, "spec": policy},
            self._replica_set(self._names.keeper, PoolPart.KEEPER, root_uid, 1, self._keeper(root_uid)),
            self._replica_set(self._names.worker, PoolPart.HOST, root_uid, self.settings.minimum, self._host(keeper)),
        )

    def all(self) -> tuple[Manifest, ...]:
        """What can be said of them without the server."""
        address = f"{self._names.keeper}.{self.namespace}.svc"
        return (self.root(), *self.first(NOT_KNOWN_YET, {}), *self.rest(NOT_KNOWN_YET, address))

    def _keeper(self, root_uid: str) -> Manifest:
        pods = self.pods
        if pods.launcher_image and pods.launcher_image != pods.image:  # Its entrypoint is its own, too.
            pods = replace(pods, image=pods.launcher_image, command=None)
        environment = [
            {"name": objects.POOL_VARIABLE, "value": self.settings.name},
            {"name": objects.POOL_UID_VARIABLE, "value": self.uid},
            {"name": objects.ROOT_VARIABLE, "value": root_uid},
            pod.from_pod(runobjects.NAMESPACE_VARIABLE, "metadata.namespace"),
            pod.from_pod(runobjects.POD_ADDRESS_VARIABLE, "status.podIP"),
        ]
        words = objects.KEEPER_COMMAND
        container = {
            **pod.container_of(objects.KEEPER_CONTAINER, pods, pods.launcher, words, environment),
            "ports": [{"name": "pool", "containerPort": objects.KEEPER_PORT}],
        }
        spec = pod.pod_of(
            container,
            pods,
            pods.launcher,
            [pool_certificates(self.settings.name, "launcher")],
            serviceAccountName=pods.service_account,
            automountServiceAccountToken=True,
            restartPolicy="Always",
        )
        return pod.finish_standing(spec, pods, self._labels(PoolPart.KEEPER), objects.KEEPER_CONTAINER, {})

    def _host(self, keeper: str) -> Manifest:
        pods, name = self.pods, self.settings.name
        environment = [*pod.where_it_is(), *pod.pool_environment(pod.InPool(name, self.uid, keeper))]
        words = (*objects.HOST_COMMAND, "--grace", f"{LEAVE:g}")
        container = pod.container_of(runobjects.WORKER_CONTAINER, pods, pods.worker, words, environment)
        pod.lend_secrets(container, pods, None)
        audience = objects.audience(name, self.uid)
        spec = pod.pod_of(
            container,
            pods,
            pods.worker,
            [pool_certificates(name, "agent"), identity(audience), *worker_volumes(pods)],
            serviceAccountName=pods.worker_service_account,
            automountServiceAccountToken=False,
            restartPolicy="Always",
            terminationGracePeriodSeconds=math.ceil(LEAVE + pod.MARGIN),
        )
        return pod.finish_worker(spec, pods, self._labels(PoolPart.HOST), runobjects.WORKER_CONTAINER, None)

    def _replica_set(self, name: str, part: PoolPart, root_uid: str, replicas: int, made: Manifest) -> Manifest:
        spec = {
            "replicas": replicas,
            "selector": {"matchLabels": self._labels(part)},
            "template": self.mutate(made, name, self.namespace),
        }
        return {**self._object("apps/v1", "ReplicaSet", name, part, root_uid), "spec": spec}

    def _labels(self, part: PoolPart) -> dict[str, str]:
        return objects.labels(self.settings.name, self.uid, part)

    def _object(self, version: str, kind: str, name: str, part: PoolPart, root_uid: str | None = None) -> Manifest:
        labels = {**self.pods.labels, **self._labels(part)}
        metadata: Manifest = {"name": name, "namespace": self.namespace, "labels": labels}
        if root_uid is not None:
            metadata["ownerReferences"] = owned_by(self._names.root, root_uid)
        return {"apiVersion": version, "kind": kind, "metadata": metadata}


def pool_objects(wanted: PodPool, uid: str, namespace: str, mutate: Mutate) -> PoolObjects:
    """The manifests of a pool, checked whole, before any is created.

    Args:
        wanted: with settings and pods.
        uid: of this incarnation.
        namespace: where.
        mutate: the deployment's own hook.

    Raises:
        InvalidSettings: a setting, or a pod template, cannot work.
    """
    assert wanted.settings is not None  # who brings a pool up has both
    assert wanted.pods is not None
    made = PoolObjects(wanted.settings, uid, wanted.pods, namespace, mutate)
    made.all()
    return made


# What launchers of a pool's runs have of its pods, which are made where the file of a template may not be.


def launcher_settings(pods: Pods) -> dict[str, Any]:
    """Return the settings that a launcher's pod has, as JSON."""
    shape = pods.launcher
    if shape.template:
        shape = replace(shape, template=template.load(shape.template, "pods.launcher.template"))
    own = replace(pods, launcher=shape, worker=PodShape(), secrets=(), volumes=(), hardware=Hardware())
    found: dict[str, Any] = template.plain({key: value for key, value in asdict(own).items() if key != "hardware"})
    return {**found, _SPOT: pods.hardware.spot}


def read_launcher_settings(text: str) -> Pods:
    """Return them as :class:`Pods`. Raise InvalidSettings, or ValueError where it is not JSON."""
    found = json.loads(text)
    spot = bool(found.pop(_SPOT, False))  # Launchers stay off nodes of that kind.
    return replace(pods_of(found), hardware=Hardware(spot=spot))
