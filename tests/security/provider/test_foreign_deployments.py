"""Two deployments of Airflow share a place and a checkpoint prefix: neither touches the other's runs."""

from __future__ import annotations

from base64 import urlsafe_b64encode

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from elastic_runtime.errors import InvalidSettings, RunNotFound
from elastic_runtime.run import runobjects
from elastic_runtime.run.spec import RunSpec
from elastic_training.clusters.fake import FakeCluster
from elastic_training.clusters.kubernetes.manifests.objects import run_objects
from elastic_training.concurrency.bridge import run
from elastic_training.identity.deployment import deployment
from elastic_training.identity.naming import run_name
from elastic_training.identity.ownership import Owner, read_owner
from elastic_training.lifecycle.training_task import TrainingTask
from elastic_training.settings import Pods
from tests.unit.provider.operator_bench import NAME, deferred, operator, trying

KEYS = [urlsafe_b64encode(bytes([digit]) * 32).decode() for digit in (1, 2)]
OPTION, KEY = "AIRFLOW__ELASTIC_TRAINING__DEPLOYMENT", "AIRFLOW__CORE__FERNET_KEY"


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(OPTION, raising=False)
    monkeypatch.delenv(KEY, raising=False)


def test_the_same_task_of_two_deployments_has_two_runs_and_two_folders(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    for key in KEYS:
        monkeypatch.setenv(KEY, key)
        deferred(operator(deferrable=True, checkpoint_uri=store), trying())
    assert len(fake.runs) == 2
    assert NAME not in fake.runs
    specs = [run(fake.spec(run(fake.find(name)))) for name in fake.runs]
    assert len({spec.checkpoint and spec.checkpoint.uri for spec in specs}) == 2


def test_the_name_the_owner_and_the_labels_tell_which(fake: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OPTION, "research")
    parting = deferred(operator(deferrable=True), trying())
    name = run_name("nightly", trying().run_id, "train", deployment="research")
    assert parting.trigger.serialize()[1]["name"] == name
    owner = run(fake.owner(run(fake.find(name))))
    found = read_owner(owner)
    assert found is not None
    assert found.deployment == "research"
    spec = RunSpec(name=name, uid="1", command=("python",))
    for manifest in run_objects(spec, owner, Pods(image="trainer:1"), namespace="here").all():
        templates = [manifest] + ([manifest["spec"]["template"]] if "template" in manifest.get("spec", {}) else [])
        for each in templates:
            assert each["metadata"]["labels"][runobjects.DEPLOYMENT_LABEL] == "research"


def test_it_follows_from_the_key_which_it_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    assert deployment() == ""
    found = []
    for key in KEYS:
        monkeypatch.setenv(KEY, key)
        found.append(deployment())
        assert deployment() == found[-1]
        assert len(found[-1]) == 8
    assert found[0] != found[1]
    monkeypatch.setenv(KEY, f"{KEYS[1]},{KEYS[0]}")
    assert deployment() == found[0], "a new key is put before the old one"
    monkeypatch.setenv(OPTION, "research")
    assert deployment() == "research", "what is said goes before what is derived"


@pytest.mark.parametrize("key", ["{FERNET_KEY}", "short", "ünlesbar", ""])
def test_what_is_not_a_key_tells_nothing(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv(KEY, key)
    assert deployment() == ""


@pytest.mark.parametrize("name", ["Research", "a/b", "x" * 41])
def test_a_name_that_kubernetes_does_not_take_is_refused(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(OPTION, name)
    with pytest.raises(InvalidSettings, match="deployment"):
        deployment()
    with pytest.raises(AirflowFailException, match="deployment"):
        operator().execute({"ti": trying()})


def test_a_run_of_no_deployment_is_another_ones(fake: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    deferred(operator(deferrable=True), trying(1))
    monkeypatch.setenv(OPTION, "research")
    parting = deferred(operator(deferrable=True), trying(2))
    assert list(fake.runs) == [NAME, parting.trigger.serialize()[1]["name"]]
    of_task = TrainingTask("nightly", "train", deployment="research")
    fake.succeed(parting.trigger.serialize()[1]["name"])
    assert run(of_task.find(fake)).name != NAME, "though that one is alive"


def test_a_run_of_that_name_that_belongs_to_another_task_is_not_this_ones(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OPTION, "research")
    task = Owner.of(trying(), "research").task
    others = Owner("nightly", trying().run_id, "train", -1, 1, "nonce", deployment="elsewhere")
    run(fake.claim(RunSpec(name=task.name, uid="1", command=("python",)), others.text()))
    with pytest.raises(RunNotFound):
        run(TrainingTask("nightly", "train", deployment="research").find(fake))
