"""``pod_mutation_hook`` of ``airflow_local_settings``, honored for pods of ours as for KubernetesPodOperator's.

It is called where a run is created, in the task's worker, with the pod that Job and ReplicaSets are given as their
template: pods that replace others come from the same, without Airflow. The launcher, which runs in the cluster, makes
no pods.
"""

from __future__ import annotations

from typing import Any

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.printable import printable
from elastic_training.clusters.kubernetes.manifests import template as models
from elastic_training.redaction.values import masked

HOOK = "pod_mutation_hook of airflow_local_settings"
_KEPT = ("labels", "annotations")


def mutated(template: dict[str, Any], name: str, namespace: str) -> dict[str, Any]:
    """The pod template as the hook leaves it; as it is, where the deployment has no hook.

    Args:
        template: of the pods; the hook is shown a pod of it.
        name: of the object that makes the pods, which the hook sees as the pod's.
        namespace: of the run.

    Raises:
        InvalidSettings: the hook fails, or changes what the run cannot do without: its labels, the namespace, the name
            of a container.
    """
    from airflow import settings

    if not _is_set(settings):
        return template
    metadata = {**template["metadata"], "name": name, "namespace": namespace}
    pod = models.model({"apiVersion": "v1", "kind": "Pod", **template, "metadata": metadata}, HOOK)
    try:
        settings.pod_mutation_hook(pod)  # type: ignore[no-untyped-call]
        changed = models.plain(pod)  # Which fails with values that no pod has.
    except Exception as error:  # whatever a deployment's own code raises
        words = masked(printable(f"{type(error).__name__}: {error}"))
        raise InvalidSettings(HOOK, f"it fails with the pod {name}: {words}", "Correct it") from error
    _check(template, changed, name, namespace)
    kept = {key: each for key, each in changed["metadata"].items() if key in _KEPT}
    return {"metadata": kept, "spec": changed["spec"]}


def _is_set(settings: Any) -> bool:
    """Whether a deployment has one; asks as Airflow itself keeps them, so that without one no model is imported."""
    getter = getattr(settings, "get_policy_plugin_manager", None)
    if getter is None and not hasattr(settings, "POLICY_PLUGIN_MANAGER"):  # Airflow 2's
        return True  # An Airflow that keeps them in another way: it is called, and may do nothing.
    manager = getter() if getter else settings.POLICY_PLUGIN_MANAGER
    if manager is None:
        return False  # No local settings have been loaded in this process.
    hooks = manager.hook.pod_mutation_hook.get_hookimpls()
    return any(getattr(each.plugin, "__name__", "") != "DefaultPolicy" for each in hooks)


def _check(template: dict[str, Any], changed: dict[str, Any], name: str, namespace: str) -> None:
    metadata = changed.get("metadata", {})
    labels = metadata.get("labels") or {}
    if lost := [key for key, value in template["metadata"]["labels"].items() if labels.get(key) != value]:
        problem = f"it takes the label {lost[0]} of the pod {name}, or changes it"
        raise InvalidSettings(HOOK, problem, "Have it leave labels that are there as they are")
    if metadata.get("namespace") != namespace:
        problem = f"it moves the pod {name} to the namespace {metadata.get('namespace')}"
        raise InvalidSettings(HOOK, problem, 'Write cluster="CONNECTION/NAMESPACE" for that')
    ours = {each["name"] for each in template["spec"]["containers"]}
    if lost := sorted(ours - {each.get("name") for each in (changed.get("spec") or {}).get("containers") or ()}):
        raise InvalidSettings(HOOK, f"it takes the container {lost[0]} of the pod {name}", "Have it leave its name")
