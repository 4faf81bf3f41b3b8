"""Pools in pods: how a task names one, what it may not say beside that, and the objects that a pool is made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from elastic_runtime.documents import from_json
from elastic_runtime.errors import InvalidSettings
from elastic_runtime.pool.pods import objects
from elastic_runtime.pool.pods.__main__ import parse_arguments
from elastic_runtime.pool.settings import PoolSettings
from elastic_runtime.run import runobjects
from elastic_runtime.run.pool import PoolSpec
from elastic_training.clusters.kubernetes.manifests.pod import InPool
from elastic_training.clusters.kubernetes.manifests.pool import (
    PODS_KEY,
    PoolObjects,
    pool_objects,
    read_launcher_settings,
)
from elastic_training.clusters.kubernetes.place import KubernetesCluster
from elastic_training.clusters.registry import check_cluster, cluster_called, has_pods, is_local, own_name, place_of
from elastic_training.settings import Pods, PodShape, Recovery, SecretRef, TrainingPool, Volume, Workers
from elastic_training.settings.training_pool import PodPool
from tests.unit.provider.manifests_bench import ROOT_UID, TLS, container_of, everything, objects_of
from tests.unit.provider.operator_bench import operator

IMAGE = "registry/trainer:1"
NAME = "pool:team-a@kubernetes_default/training"
POOL = TrainingPool("team-a", min=1, max=4, gpus=2, on="kubernetes_default/training", pods=Pods(image=IMAGE))


def as_it_is(template: dict[str, Any], _name: str, _namespace: str) -> dict[str, Any]:
    return template


def made(pods: Pods | None = None, **pool: Any) -> PoolObjects:
    settings = {"min": 1, "max": 4, "gpus": 2, "on": "k8s", "pods": pods or Pods(image=IMAGE), **pool}
    return pool_objects(TrainingPool("team-a", **settings).pod_pool(), "pool-uid", "training", as_it_is)


def of_pool(found: PoolObjects) -> dict[str, dict[str, Any]]:
    made = (found.root(), *found.first(ROOT_UID, TLS), *found.rest(ROOT_UID, "10.96.7.8"))
    return {f"{each['kind']} {each['metadata']['labels'][runobjects.PART_LABEL]}": each for each in made}


def test_its_name_leads_to_the_pool_and_to_the_place_of_its_pods() -> None:
    assert POOL.cluster == NAME
    for name in (NAME, "pool:team-a@k8s"):
        check_cluster(name)
    assert (place_of(NAME), place_of("pool:team-a"), place_of("k8s")) == (
        "kubernetes_default/training",
        "pool:team-a",
        "k8s",
    )
    assert has_pods(NAME)
    assert not is_local(NAME)
    assert own_name("local") == "local"
    assert isinstance(cluster_called("kubernetes_default/training", PodPool("team-a")), KubernetesCluster)


@pytest.mark.parametrize("name", ["pool:Team@k8s", "pool:team-a@", "pool:team-a@k8s/Namespace", "pool:team-a@a b"])
def test_a_name_that_leads_nowhere_is_refused(name: str) -> None:
    with pytest.raises(InvalidSettings):
        check_cluster(name)


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("pool.jupyter", {"on": "k8s", "pods": Pods(image=IMAGE), "jupyter": True}),
        ("pool.pods", {"pods": Pods(image=IMAGE)}),
        ("pool.spot", {"spot": True}),
        ("pool.shm", {"shm": "1Gi"}),
        ("pool.machine", {"machine": "g5.xlarge"}),
    ],
)
def test_settings_that_cannot_be_are_refused(field: str, given: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettings) as caught:
        TrainingPool(**{"name": "team-a", **given})
    assert caught.value.field == field


def test_its_image_can_be_that_of_a_connection() -> None:
    pool = TrainingPool("team-a", on="k8s", pods={"env": {"A": "1"}})
    with pytest.raises(InvalidSettings, match="no container image"):
        pool.pod_pool()
    found = pool.pod_pool(IMAGE, "registry/launcher:1").pods
    assert found is not None
    assert (found.image, found.launcher_image) == (IMAGE, "registry/launcher:1")


def test_a_task_says_its_place_in_the_pool() -> None:
    task = operator(cluster=POOL, workers=Workers(min=1, max=4, greedy=True), priority_weight=10)
    assert task.cluster == NAME
    assert task.spec("run").pool == PoolSpec("team-a", 10, True)


def test_the_first_task_has_what_it_brings_the_pool_up_with_and_others_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"place": "kubernetes", "namespace": "training", "image": IMAGE, "checkpoint_uri": "s3://bucket/runs"}
    monkeypatch.setenv("AIRFLOW_CONN_GPUS", json.dumps({"conn_type": "elastic_training", "extra": said}))
    first = operator(cluster=TrainingPool("team-a", max=2, on="gpus"))
    wanted = pool_of(first)
    assert wanted.settings == PoolSettings("team-a", 0, 2)
    assert wanted.pods is not None
    assert (wanted.pods.image, first.checkpoint_uri) == (IMAGE, "s3://bucket/runs")
    second = operator(task_id="second", cluster="pool:team-a@gpus")
    assert pool_of(second) == PodPool("team-a")
    assert own_name("pool:team-a@gpus") == "kubernetes_default/training"
    rendered = operator(task_id="third", cluster="{{ params.cluster }}", image=IMAGE)
    rendered.cluster = "pool:team-a@gpus"
    with pytest.raises(InvalidSettings, match="are there before this training"):
        rendered.creating_cluster()
    monkeypatch.setenv("AIRFLOW_CONN_HERE", json.dumps({"conn_type": "elastic_training", "extra": {"place": "local"}}))
    with pytest.raises(InvalidSettings, match="where there are no pods"):
        operator(task_id="fourth", cluster="pool:team-a@here").creating_cluster()


def pool_of(task: Any) -> PodPool:
    made = task.creating_cluster()
    assert isinstance(made, KubernetesCluster)
    assert made._namespace._pool is not None
    return made._namespace._pool


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("image", {"image": IMAGE}),
        ("pods", {"pods": Pods(env={"A": "1"})}),
        ("workers.gpus", {"workers": Workers(gpus=1)}),
        ("workers.spot", {"workers": Workers(spot=True)}),
        ("workers.machine", {"workers": Workers(machine="g5.xlarge")}),
        ("workers.join", {"workers": Workers(join={"networks": ["10.0.0.0/16"]})}),
        ("recovery.grow_memory", {"recovery": Recovery(grow_memory=1.5, up_to="2Gi")}),
        ("jupyter", {"jupyter": True}),
        ("hostfile", {"hostfile": "/etc/mpi/hostfile"}),
    ],
)
def test_what_is_the_pools_to_say_is_refused_at_parse(field: str, given: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettings) as caught:
        operator(cluster=NAME, **given)
    assert caught.value.field == field


def test_the_root_has_the_settings_and_owns_all_others() -> None:
    found = of_pool(made())
    root = found.pop("ConfigMap root")
    assert root["metadata"]["name"] == "pool-team-a"
    settings = from_json(PoolSettings, root["metadata"]["annotations"][objects.SETTINGS])
    assert settings == PoolSettings("team-a", 1, 4, 2)
    for each in found.values():
        (owner,) = each["metadata"]["ownerReferences"]
        assert (owner["name"], owner["uid"]) == ("pool-team-a", ROOT_UID)
        assert each["metadata"]["labels"][runobjects.MANAGED_BY_LABEL] != runobjects.PREFIX, "it is no run's"
    assert found["ReplicaSet keeper"]["spec"]["replicas"] == 1
    assert found["ReplicaSet worker"]["spec"]["replicas"] == 1, "the minimum"
    assert found["NetworkPolicy network"]["spec"]["podSelector"] == {"matchLabels": {objects.POOL_LABEL: "team-a"}}


def test_a_host_is_a_worker_of_its_own_with_the_pools_certificate_and_a_token_of_its_pod() -> None:
    pods = Pods(
        image=IMAGE,
        secrets=[SecretRef("s3")],
        volumes=[Volume("/data", claim="data")],
        worker=PodShape(resources={"limits": {"cpu": 4}}),
    )
    template = of_pool(made(pods))["ReplicaSet worker"]["spec"]["template"]
    host, spec = container_of(template), template["spec"]
    assert parse_arguments(host["args"][3:]).grace == 60.0
    variables = {each["name"]: each.get("value") for each in host["env"]}
    assert variables[objects.KEEPER_VARIABLE] == "10.96.7.8:7078"
    assert variables[objects.POOL_UID_VARIABLE] == "pool-uid"
    assert host["resources"]["limits"] == {"cpu": "4", "nvidia.com/gpu": "2"}
    assert host["envFrom"] == [{"secretRef": {"name": "s3"}}]
    volumes = {each["name"]: each for each in spec["volumes"]}
    (token,) = volumes[runobjects.IDENTITY_VOLUME]["projected"]["sources"]
    assert token["serviceAccountToken"]["audience"] == objects.audience("team-a", "pool-uid")
    keys = {each["key"] for each in volumes["elastic-training-pool"]["secret"]["items"]}
    assert keys == {"ca.crt", "agent.crt", "agent.key"}
    assert spec["terminationGracePeriodSeconds"] > 60
    assert spec["automountServiceAccountToken"] is False
    keeper = of_pool(made(pods))["ReplicaSet keeper"]["spec"]["template"]
    assert "envFrom" not in container_of(keeper)
    (held,) = (each for each in keeper["spec"]["volumes"] if each["name"] == "elastic-training-pool")
    assert {each["key"] for each in held["secret"]["items"]} == {"ca.crt", "launcher.crt", "launcher.key"}


def test_hosts_and_launchers_wait_in_the_queue_of_the_pool_and_its_keeper_does_not() -> None:
    found = of_pool(made(Pods(image=IMAGE, queue="team")))
    labels = {
        name: found[f"ReplicaSet {name}"]["spec"]["template"]["metadata"]["labels"] for name in ("worker", "keeper")
    }
    assert labels["worker"]["kueue.x-k8s.io/queue-name"] == "team"
    assert "kueue.x-k8s.io/queue-name" not in labels["keeper"], "it starts nothing that waits for itself"
    launcher = read_launcher_settings(found["ConfigMap root"]["data"][PODS_KEY])
    job = everything(objects_of(launcher, pool=InPool("team-a", "pool-uid", "10.96.7.8")))["Job launcher"]
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"


def test_a_run_of_a_pool_has_no_workers_of_its_own_and_its_launcher_all_that_agents_need() -> None:
    found = everything(objects_of(pool=InPool("team-a", "pool-uid", "10.96.7.8"), credentials={"KEY": "secret"}))
    assert not {each for each in found if each.endswith(" worker")}
    template = found["Job launcher"]["spec"]["template"]
    assert template["metadata"]["labels"][objects.POOL_LABEL] == "team-a", "the pool's network lets it in"
    volumes = {each["name"]: each["secret"] for each in template["spec"]["volumes"]}
    assert {"agent.crt", "agent.key", "launcher.key"} < {
        each["key"] for each in volumes["elastic-training-tls"]["items"]
    }
    assert volumes["elastic-training-pool"]["secretName"] == "pool-team-a-tls"
    assert volumes["elastic-training-store"]["secretName"].endswith("-store")
    others = everything(objects_of(credentials={"KEY": "secret"}))["Job launcher"]["spec"]["template"]
    assert {each["name"] for each in others["spec"]["volumes"]} == {"elastic-training-tls"}


def test_launchers_of_its_runs_have_the_settings_that_it_was_brought_up_with(tmp_path: Path) -> None:
    (file := tmp_path / "launcher.yaml").write_text("kind: Pod\nspec: {priority: 7}\n")
    pods = Pods(
        image=IMAGE,
        launcher_image="registry/launcher:1",
        env={"A": "1"},
        secrets=[SecretRef("s3")],
        launcher=PodShape(node_selector={"role": "cpu"}, template=str(file)),
        worker=PodShape(resources={"limits": {"cpu": 4}}),
    )
    text = of_pool(made(pods))["ConfigMap root"]["data"][PODS_KEY]
    found = read_launcher_settings(text)
    assert (found.image, found.launcher_image, found.env) == (IMAGE, "registry/launcher:1", {"A": "1"})
    assert found.launcher.node_selector == {"role": "cpu"}
    assert found.launcher.template == {"kind": "Pod", "spec": {"priority": 7}}
    assert (found.secrets, found.worker.resources) == ([], None)
    assert not found.hardware.spot
    spot = read_launcher_settings(of_pool(made(pods, spot=True))["ConfigMap root"]["data"][PODS_KEY])
    assert spot.hardware.spot, "launchers stay off such nodes"
