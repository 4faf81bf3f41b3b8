"""A deployment's ``pod_mutation_hook``: honored for all pods of a run, by KubernetesPodOperator's rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from airflow import settings
from airflow.policies import hookimpl

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.run import runobjects
from elastic_runtime.run.spec import JupyterSpec
from elastic_training.clusters.kubernetes.manifests.mutation import mutated
from elastic_training.settings import Pods
from tests.unit.provider.manifests_bench import SPEC, everything, objects_of

PODS = Pods(image="registry/trainer:1", labels={"team": "vision"})
WITH_JUPYTER = replace(SPEC, jupyter=JupyterSpec("notebook/token"))


@contextmanager
def hook(change: Callable[[Any], None]) -> Iterator[None]:
    """As Airflow has that of its local settings."""

    class Local:
        @staticmethod
        @hookimpl
        def pod_mutation_hook(pod: Any) -> None:
            change(pod)

    manager = settings.get_policy_plugin_manager()
    manager.register(Local, name="local")
    try:
        yield
    finally:
        manager.unregister(Local)


def templates(spec: Any = SPEC) -> dict[str, Any]:
    made = everything(objects_of(PODS, spec, mutate=mutated))
    return {
        each["metadata"]["name"]: each["spec"]["template"]
        for each in made.values()
        if "template" in each.get("spec", {})
    }


def test_without_one_pods_are_as_they_were() -> None:
    plain = everything(objects_of(PODS))
    assert everything(objects_of(PODS, mutate=mutated)) == plain
    with hook(lambda pod: None):
        changed = templates()
    assert changed == {
        each["metadata"]["name"]: each["spec"]["template"]
        for each in plain.values()
        if "template" in each.get("spec", {})
    }


def test_it_is_asked_of_launcher_workers_and_jupyter() -> None:
    from kubernetes.client import V1Toleration

    seen = set()

    def change(pod: Any) -> None:
        seen.add((pod.kind, pod.metadata.name, pod.metadata.namespace, pod.metadata.labels["team"]))
        pod.metadata.annotations = {**(pod.metadata.annotations or {}), "example.com/cost": "research"}
        pod.spec.tolerations = [*(pod.spec.tolerations or ()), V1Toleration(key="batch", operator="Exists")]

    with hook(change):
        made = templates(WITH_JUPYTER)
    assert len(made) == 3
    assert seen == {("Pod", name, "training", "vision") for name in made}
    for template in made.values():
        assert template["metadata"]["annotations"]["example.com/cost"] == "research"
        assert {"key": "batch", "operator": "Exists"} in template["spec"]["tolerations"]
        assert set(template["metadata"]) == {"labels", "annotations"}


def fails(pod: Any) -> None:
    raise ValueError(f"not here: {pod.metadata.namespace}")


def leaves_an_object(pod: Any) -> None:
    pod.spec.tolerations = [object()]


def takes_labels(pod: Any) -> None:
    pod.metadata.labels = {"team": "ops"}


def moves(pod: Any) -> None:
    pod.metadata.namespace = "elsewhere"


def renames(pod: Any) -> None:
    pod.spec.containers[0].name = "base"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (fails, "it fails with the pod .*: ValueError: not here: training. Correct it"),
        (leaves_an_object, "it fails with the pod .*: AttributeError"),
        (takes_labels, "it takes the label .* of the pod .*, or changes it"),
        (moves, 'it moves the pod .* to the namespace elsewhere. Write cluster="CONNECTION/NAMESPACE"'),
        (renames, f"it takes the container {runobjects.LAUNCHER_CONTAINER} of the pod|it takes the container worker"),
    ],
)
def test_what_a_run_cannot_do_without_stays(change: Callable[[Any], None], words: str) -> None:
    with hook(change), pytest.raises(InvalidSettings, match=words) as refused:
        templates()
    assert refused.value.field == "pod_mutation_hook of airflow_local_settings"


def test_other_versions_of_airflow_keep_hooks_in_other_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "pod_mutation_hook", takes_labels)
    monkeypatch.delattr(settings, "get_policy_plugin_manager")
    monkeypatch.delattr(settings, "POLICY_PLUGIN_MANAGER", raising=False)
    with pytest.raises(InvalidSettings, match="it takes the label"):
        templates()
    monkeypatch.setattr(settings, "POLICY_PLUGIN_MANAGER", None, raising=False)
    assert len(templates()) == 2
    implementation = SimpleNamespace(plugin=SimpleNamespace(__name__="local"))
    hooks = SimpleNamespace(pod_mutation_hook=SimpleNamespace(get_hookimpls=lambda: [implementation]))
    monkeypatch.setattr(settings, "POLICY_PLUGIN_MANAGER", SimpleNamespace(hook=hooks), raising=False)
    with pytest.raises(InvalidSettings, match="it takes the label"):
        templates()
