"""The two kinds of pods of a run, as they stand in the templates of Job and ReplicaSet. Pure but for a template's file.

Three layers: a pod template at the bottom, the settings over it, and on top what every pod of ours has: the security
context, the tolerations, the labels. The image's entrypoint is left alone and given arguments, so that an init process
in it forwards SIGTERM and reaps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.kubernetes.nodes import spot_values
from elastic_runtime.net.certificates import AUTHORITY_KEY
from elastic_runtime.net.sockets import host_and_port
from elastic_runtime.pool.messages import AGENT_FILES
from elastic_runtime.pool.pods import objects
from elastic_runtime.run import runobjects
from elastic_runtime.run.runobjects import ObjectNames, Part
from elastic_runtime.run.spec import JupyterSpec, RunSpec
from elastic_training.clusters.kubernetes.manifests import template
from elastic_training.clusters.kubernetes.manifests.volumes import (
    Mounted,
    certificates,
    hostfile,
    identity,
    in_pool,
    jupyter_token,
    prometheus,
    secret_environment,
    worker_volumes,
)
from elastic_training.settings.machines import INSTANCE_TYPE, Machine
from elastic_training.settings.pod_rules import is_model
from elastic_training.settings.pods import Pods, PodShape
from elastic_training.settings.recovery import check_growth

LAUNCHER_GRACE = 30
"""Seconds that the launcher has for a hand-over checkpoint when its pod is taken."""
MARGIN = 5
"""Seconds between the end of a leaving worker's ranks, by force, and the end of its pod."""
LAUNCHER_RESOURCES = {"requests": {"cpu": "250m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}
"""It moves no tensor: with a few workers it takes 80 MB."""
STAY = {
    # Its eviction would stop the whole fleet, until another launcher has restarted it from a durable checkpoint.
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
}
"""Annotations of the launcher's pod, and of Jupyter's: autoscalers do not empty its node to save it. Workers have none,
for they leave without losing a step."""
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
NODE_LOSS_SECONDS = 10
"""A pod on a node that has gone silent is replaced so long after Kubernetes has noticed (which takes it 40 s or so).
Its default of 300 s suits services; a silent worker has been lost to its training by then anyway."""
SPOT = spot_values()
"""How clouds and autoscalers label nodes that may be taken back; their taints use the same keys."""
_NODE_LOSS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def ports(spec: RunSpec) -> dict[str, int]:
    """Return the launcher's ports by name."""
    asked = spec.observe.prometheus
    return {"agents": runobjects.LAUNCHER_PORT} | ({"metrics": asked.port} if asked and asked.port else {})


@dataclass(frozen=True, slots=True)
class InPool:
    """The pool in this namespace whose workers a run has."""

    name: str
    uid: str
    keeper: str
    """Address of its keeper's Service."""


def launcher(spec: RunSpec, pods: Pods, store: str | None = None, pool: InPool | None = None) -> dict[str, Any]:
    """Pod template of the Job.

    Args:
        spec: of the run.
        pods: settings.
        store: name of the Secret with the variables of the checkpoint store, for ranks in a pool.
        pool: whose workers the run has; None: its own.

    Raises:
        InvalidSettings: the template cannot be merged.
    """
    names = ObjectNames(spec.name)
    environment = [
        {"name": runobjects.RUN_VARIABLE, "value": spec.name},
        {"name": runobjects.RUN_UID_VARIABLE, "value": spec.uid},
        from_pod(runobjects.NAMESPACE_VARIABLE, "metadata.namespace"),
        from_pod(runobjects.POD_NAME_VARIABLE, "metadata.name"),
        from_pod(runobjects.POD_UID_VARIABLE, "metadata.uid"),
        from_pod(runobjects.POD_ADDRESS_VARIABLE, "status.podIP"),
    ]
    own = pods
    if pods.launcher_image and pods.launcher_image != pods.image:  # Its entrypoint is its own, too.
        own = replace(pods, image=pods.launcher_image, command=None)
        environment.append({"name": runobjects.OWN_IMAGE_VARIABLE, "value": "1"})
    if pool:
        environment += pool_environment(pool)
    container = {
        **container_of(runobjects.LAUNCHER_CONTAINER, own, pods.launcher, runobjects.LAUNCHER_COMMAND, environment),
        "ports": [{"name": name, "containerPort": port} for name, port in ports(spec).items()],
    }
    pod = pod_of(
        container,
        pods,
        pods.launcher,
        [
            certificates(names.tls, "launcher", *_further_files(spec), *(AGENT_FILES if pool else ())),
            *prometheus(spec),
            *(in_pool(pool.name, store) if pool else ()),
        ],
        serviceAccountName=pods.service_account,
        automountServiceAccountToken=True,
        restartPolicy="Never",
        terminationGracePeriodSeconds=LAUNCHER_GRACE,
    )
    finished = _finished(pod, spec, pods, Part.LAUNCHER)
    if pool:
        finished["metadata"]["labels"][objects.POOL_LABEL] = pool.name
    return finished


def pool_environment(pool: InPool) -> list[dict[str, Any]]:
    """Return the variables by which a pod finds its pool."""
    return [
        {"name": objects.KEEPER_VARIABLE, "value": host_and_port(pool.keeper, objects.KEEPER_PORT)},
        {"name": objects.POOL_UID_VARIABLE, "value": pool.uid},
    ]


def _further_files(spec: RunSpec) -> list[str]:
    """Of the launcher, in the Secret of the run's certificates."""
    files = {runobjects.SCRIPTS_KEY: spec.scripts, AUTHORITY_KEY: spec.join}
    return [name for name, wanted in files.items() if wanted]


def where_it_is() -> list[dict[str, Any]]:
    """Return the variables that tell a worker's container in which pod it is, and how it shows that."""
    return [
        from_pod(runobjects.POD_NAME_VARIABLE, "metadata.name"),
        from_pod(runobjects.POD_ADDRESS_VARIABLE, "status.podIP"),
        from_pod(runobjects.NODE_VARIABLE, "spec.nodeName"),
        {"name": runobjects.IDENTITY_VARIABLE, "value": runobjects.IDENTITY_TOKEN},
    ]


def worker(spec: RunSpec, pods: Pods, launcher_address: str, store: str | None = None) -> dict[str, Any]:
    """Pod template of the ReplicaSet.

    Args:
        spec: of the run.
        pods: settings.
        launcher_address: for the agents to dial.
        store: name of the Secret with the variables of the checkpoint store; what ``pods`` say goes before it.

    Raises:
        InvalidSettings: the template cannot be merged.
    """
    names = ObjectNames(spec.name)
    words = (
        *runobjects.AGENT_COMMAND,
        *("--worker", f"$({runobjects.POD_NAME_VARIABLE})"),
        *("--launcher", f"{launcher_address}:{runobjects.LAUNCHER_PORT}"),
        *("--tls", runobjects.TLS_FOLDER),
        *("--slots", str(spec.workers.slots)),
        *("--node", f"$({runobjects.NODE_VARIABLE})"),
        *("--address", f"$({runobjects.POD_ADDRESS_VARIABLE})"),
        *("--grace", f"{spec.timing.leave_grace:g}"),
        *("--metadata", spec.recovery.notices.value),
        "--redial",
    )
    audience = runobjects.audience(spec.name, spec.uid)
    container = container_of(runobjects.WORKER_CONTAINER, pods, pods.worker, words, where_it_is())
    lend_secrets(container, pods, store)
    pod = pod_of(
        container,
        pods,
        pods.worker,
        [certificates(names.tls, "agent"), identity(audience), *worker_volumes(pods)],
        serviceAccountName=pods.worker_service_account,
        automountServiceAccountToken=False,
        restartPolicy="Always",  # a ReplicaSet knows no other
        terminationGracePeriodSeconds=math.ceil(spec.timing.leave_grace + spec.timing.stop_grace + MARGIN),
    )
    finished = _finished(pod, spec, pods, Part.WORKER)
    check_growth(spec.recovery, finished["spec"]["containers"][0].get("resources"))
    return finished


def jupyter(spec: RunSpec, asked: JupyterSpec, pods: Pods, store: str | None = None) -> dict[str, Any]:
    """Pod template of Jupyter's ReplicaSet: it has what the workers' user can read, but no GPU, certificate or rights.

    Args:
        spec: of the run.
        asked: a part of it.
        pods: settings; it goes where the launcher may, of whose template it has nothing.
        store: as for :func:`worker`.

    Raises:
        InvalidSettings: a setting is none of the API's.
    """
    shape = replace(pods.launcher, template=None, resources=None)
    words = (*runobjects.JUPYTER_COMMAND, str(asked.port), runobjects.JUPYTER_TOKEN)
    container = container_of(runobjects.JUPYTER_CONTAINER, pods, shape, words, ())
    container["ports"] = [{"name": "jupyter", "containerPort": asked.port}]
    container["resources"] = {"requests": {"cpu": "250m", "memory": asked.memory}, "limits": {"memory": asked.memory}}
    lend_secrets(container, pods, store)
    pod = pod_of(
        container,
        pods,
        shape,
        [jupyter_token(asked), *worker_volumes(pods, shared_memory=False)],
        serviceAccountName=pods.worker_service_account,
        automountServiceAccountToken=False,
        restartPolicy="Always",
    )
    return _finished(pod, spec, replace(pods, launcher=shape), Part.JUPYTER)


def lend_secrets(container: dict[str, Any], pods: Pods, store: str | None) -> None:
    """Give a container the Secrets of the settings, and those of the Secret ``store``, as variables."""
    container["env"] = [*container.get("env", ()), *secret_environment(pods.secrets)]
    whole = [*filter(None, [store]), *(each.name for each in pods.secrets if not (each.key or each.mount))]
    if whole:
        container["envFrom"] = [{"secretRef": {"name": name}} for name in whole]


def container_of(
    name: str, pods: Pods, shape: PodShape, words: Sequence[str], environment: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return a container.

    Args:
        name: of the container.
        pods: settings.
        shape: its resources.
        words: arguments of the image's entrypoint.
        environment: variables, after those of ``pods``.
    """
    return _given(
        name=name,
        image=pods.image,
        imagePullPolicy=pods.image_pull_policy,
        command=list(pods.command or ()),
        args=list(words),
        env=[*({"name": name, "value": str(value)} for name, value in pods.env.items()), *environment],
        resources=_quantities(shape.resources),
        # When a container dies without last words of its own, Kubernetes keeps the end of its log for them.
        terminationMessagePolicy="FallbackToLogsOnError",
    )


def pod_of(
    container: dict[str, Any], pods: Pods, shape: PodShape, mounted: Sequence[Mounted], **more: Any
) -> dict[str, Any]:
    """Return the spec of a pod.

    Args:
        container: its only one.
        pods: settings.
        shape: on which nodes it may be.
        mounted: volumes.
        more: further fields.
    """
    container["volumeMounts"] = [each.mount for each in mounted]
    return _given(
        **more,
        containers=[container],
        volumes=[each.volume for each in mounted],
        imagePullSecrets=[{"name": name} for name in pods.image_pull_secrets],
        nodeSelector=dict(shape.node_selector),
        affinity=_plain(shape.affinity),
        tolerations=[_plain(each) for each in shape.tolerations],
        priorityClassName=pods.priority_class,
        schedulerName=pods.scheduler_name,
        # The cluster's services would become hundreds of variables of every rank.
        enableServiceLinks=False,
    )


def _finished(spec_of_pod: dict[str, Any], spec: RunSpec, pods: Pods, part: Part) -> dict[str, Any]:
    labels = runobjects.labels(spec.name, spec.uid, part)
    if part is not Part.WORKER:
        annotations = _scraped(spec) if part is Part.LAUNCHER else {}
        return finish_standing(spec_of_pod, pods, labels, part.value, annotations)
    return finish_worker(spec_of_pod, pods, labels, part.value, spec.hostfile)


def finish_worker(
    spec_of_pod: dict[str, Any], pods: Pods, labels: Mapping[str, str], container: str, hosts: str | None
) -> dict[str, Any]:
    """Return a pod in which ranks run: over its template, with the hardware of a worker, and restricted.

    Args:
        spec_of_pod: as :func:`pod_of` has made it.
        pods: settings.
        labels: of the pod, beside those of ``pods`` and of its queue.
        container: that is ours, if the template has several.
        hosts: the run's own hostfile, if there is one.

    Raises:
        InvalidSettings: the template cannot be merged, or the API has no such setting.
    """
    queue = {QUEUE_LABEL: pods.queue} if pods.queue else {}
    pod = _over_template(spec_of_pod, pods, pods.worker, {**labels, **queue}, container, "pods.worker")
    finished: dict[str, Any] = pod["spec"]
    ours = finished["containers"][0]
    _equip(finished, ours, pods)
    for each in hostfile(hosts, ours["volumeMounts"]):
        finished["volumes"].append(each.volume)
        ours["volumeMounts"].append(each.mount)
    leave_lost_nodes(finished)
    restrict(finished, pods)
    return pod


def finish_standing(
    spec_of_pod: dict[str, Any], pods: Pods, labels: Mapping[str, str], container: str, annotations: Mapping[str, str]
) -> dict[str, Any]:
    """Return a pod that moves no tensor and is to stay where it is; arguments and errors as :func:`finish_worker`."""
    pod = _over_template(spec_of_pod, pods, pods.launcher, labels, container, "pods.launcher")
    finished: dict[str, Any] = pod["spec"]
    finished["containers"][0].setdefault("resources", deepcopy(LAUNCHER_RESOURCES))
    pod["metadata"]["annotations"] = {**STAY, **annotations, **pod["metadata"].get("annotations", {})}
    if pods.hardware.spot:
        off_spot(finished)
    leave_lost_nodes(finished)
    restrict(finished, pods)
    return pod


def _over_template(
    spec_of_pod: dict[str, Any], pods: Pods, shape: PodShape, labels: Mapping[str, str], container: str, at: str
) -> dict[str, Any]:
    # A copy: what the user has given is used for both kinds of pods, and by other tasks.
    metadata = _given(labels={**pods.labels, **labels}, annotations=dict(pods.annotations))
    pod = {"metadata": metadata, "spec": deepcopy(spec_of_pod)}
    if shape.template:
        pod = template.merge(shape.template, pod, container, f"{at}.template")
    elif shape.affinity or shape.tolerations or any(volume.raw for volume in pods.volumes):
        template.check_fields(pod, at)
    ours = pod["spec"]["containers"][0]
    ours["env"] = _last_values(ours["env"])
    return pod


def _scraped(spec: RunSpec) -> dict[str, str]:
    """What most configurations of Prometheus look for. The token is theirs to know."""
    port = ports(spec).get("metrics")
    found = {"scrape": "true", "path": "/metrics", "port": str(port)} if port else {}
    return {f"prometheus.io/{key}": value for key, value in found.items()}


def _equip(spec_of_pod: dict[str, Any], container: dict[str, Any], pods: Pods) -> None:
    hardware = pods.hardware
    if hardware.gpus:
        resources = dict(container.get("resources") or {})
        # Of what a device plugin hands out, the request is always the limit.
        resources["limits"] = {**resources.get("limits", {}), hardware.gpu_resource: str(hardware.gpus)}
        container["resources"] = resources
        tolerate_devices(spec_of_pod, hardware.gpu_resource)
    if hardware.machine:
        onto_machine(spec_of_pod, hardware.machine)
    if hardware.spot:
        onto_spot(spec_of_pod)


def check_image(pods: Pods) -> None:
    """Raise InvalidSettings if no image is set."""
    if not pods.image:
        raise InvalidSettings("image", "no container image is set for the pods", 'Write image="registry/trainer:1"')


def from_pod(variable: str, path: str) -> dict[str, Any]:
    """Return a container's variable that Kubernetes sets to a field of its pod (downward API)."""
    return {"name": variable, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _last_values(environment: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One entry a name, the last: a template's variables come first, and Kubernetes warns of doubles."""
    return list({each["name"]: each for each in environment}.values())


def _quantities(resources: Mapping[str, Mapping[str, Any]] | None) -> dict[str, dict[str, str]]:
    return {side: {name: str(value) for name, value in each.items()} for side, each in (resources or {}).items()}


def _plain(value: Any) -> Any:
    return template.plain(value) if is_model(value) else value


def _given(**fields: Any) -> dict[str, Any]:
    """Without those that say nothing."""
    return {key: value for key, value in fields.items() if value not in (None, "", [], {})}


# Pod Security "restricted": no root, no privilege, no capability, the runtime's system call filter. Pure.
#
# Fills in what a pod does not say itself. Only a pod template can say otherwise, and where its namespace enforces
# "restricted", such a pod is refused by the API server.


def restrict(spec: dict[str, Any], pods: Pods) -> None:
    """Every container of the pod, also those that a template has brought."""
    identity = {"runAsUser": pods.run_as_user, "runAsGroup": pods.run_as_group, "fsGroup": pods.fs_group}
    spec["securityContext"] = {
        "runAsNonRoot": True,
        **{key: int(value) for key, value in identity.items() if value is not None},
        "seccompProfile": {"type": "RuntimeDefault"},
        **(spec.get("securityContext") or {}),
    }
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        container["securityContext"] = {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            **(container.get("securityContext") or {}),
        }


# On which nodes pods may run: capacity that the cloud may take back, and nodes that are gone. Pure.
#
# Works on finished pod specs, and adds to what a user or a pod template has said, never instead of it.


def onto_spot(spec: dict[str, Any]) -> None:
    """Only nodes that carry one of the labels, whatever their taints say about that."""
    _require_any(spec, [{"matchExpressions": [each]} for each in _spot("In")])
    _tolerate(spec, [_tolerance(key) for key in SPOT])


def off_spot(spec: dict[str, Any]) -> None:
    """Only nodes that carry none of the labels; unless the pod asks for one of them itself."""
    if not SPOT.keys() & _keys(spec):
        _require_any(spec, [{"matchExpressions": _spot("NotIn")}])


def _spot(operator: str) -> list[dict[str, Any]]:
    """``In``: nodes that may be taken back. ``NotIn``: all others, those without the labels included."""
    return [{"key": key, "operator": operator, "values": values} for key, values in SPOT.items()]


def tolerate_devices(spec: dict[str, Any], resource: str) -> None:
    """The taint that keeps others off nodes with devices, as Kubernetes' plugin ExtendedResourceToleration does it."""
    _tolerate(spec, [_tolerance(resource)])


def onto_machine(spec: dict[str, Any], machine: Machine) -> None:
    """Only nodes of that type; unless the pod names an instance type itself."""
    if INSTANCE_TYPE not in _keys(spec):
        spec["nodeSelector"] = {**machine.selector, **(spec.get("nodeSelector") or {})}
    _tolerate(spec, [_tolerance(key) for key in machine.tolerations])


def leave_lost_nodes(spec: dict[str, Any]) -> None:
    """Soon, unless the pod says itself how long it wants to wait."""
    named = {toleration.get("key") for toleration in spec.get("tolerations", ())}
    _tolerate(
        spec,
        [
            {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": NODE_LOSS_SECONDS}
            for key in _NODE_LOSS
            if key not in named
        ],
    )


def _tolerance(key: str) -> dict[str, Any]:
    return {"key": key, "operator": "Exists", "effect": "NoSchedule"}


def _tolerate(spec: dict[str, Any], tolerations: Sequence[dict[str, Any]]) -> None:
    present = spec.setdefault("tolerations", [])
    present.extend(toleration for toleration in tolerations if toleration not in present)


def _require_any(spec: dict[str, Any], terms: Sequence[dict[str, Any]]) -> None:
    """One of the terms *and* what is required already.

    Terms of a node selector are alternatives, so "and" is each of the old with each of the new.
    """
    affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {}).setdefault(_REQUIRED, {})
    before = affinity.get("nodeSelectorTerms") or [{}]
    affinity["nodeSelectorTerms"] = [_both(old, new) for old in before for new in terms]


def _both(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    expressions = [*old.get("matchExpressions", ()), *new["matchExpressions"]]
    return {**old, "matchExpressions": expressions}


def _keys(spec: Mapping[str, Any]) -> set[str]:
    """Labels of nodes that the pod asks for."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    terms = (affinity.get(_REQUIRED) or {}).get("nodeSelectorTerms") or ()
    expressions = [expression for term in terms for expression in term.get("matchExpressions", ())]
    return {*(spec.get("nodeSelector") or {}), *(str(expression.get("key")) for expression in expressions)}
