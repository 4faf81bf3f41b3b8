"""Somebody edits what a training task remembers, through Airflow's page or API: it gets neither another task's run nor
another run's checkpoints, and no path out of the place."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.providers.common.compat.sdk import TaskDeferred

from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import Phase
from elastic_training.clusters.fake import FakeCluster
from elastic_training.clusters.registry import substituted
from elastic_training.concurrency.bridge import run
from elastic_training.identity.naming import TaskIdentity
from elastic_training.identity.ownership import Owner
from tests.unit.provider.fake_states import FakeStateStore
from tests.unit.provider.operator_bench import NAME, operator, run_in, trying

OTHER = TaskIdentity("nightly", trying().run_id, "other")


def trained(states: FakeStateStore, store: str) -> None:
    with pytest.raises(TaskDeferred):
        operator(deferrable=True, checkpoint_uri=store).execute({"ti": trying(2), "task_state_store": states})


def remembered(name: str, cluster: str = "local", **more: Any) -> FakeStateStore:
    return FakeStateStore({"training_run": {"name": name, "uid": "1", "cluster": cluster, **more}})


def other_run(fake: FakeCluster) -> None:
    owner = Owner(OTHER.dag_id, OTHER.run_id, OTHER.task_id, -1, 1, "nonce").text()
    run(fake.claim(RunSpec(name=OTHER.name, uid="1", command=("python", "train.py")), owner))


@pytest.mark.parametrize(
    "name",
    ["../../etc", "/etc/passwd", "", "run\n", "UPPER", "a" * 53, OTHER.name, "nightly-train-0123456789"],
)
def test_the_run_and_its_checkpoints_are_the_tasks_own(fake: FakeCluster, store: str, name: str) -> None:
    trained(remembered(name), store)
    assert list(fake.runs) == [NAME]
    spec = run_in(fake).spec
    assert spec.checkpoint is not None
    assert spec.checkpoint.uri == f"{store}/{NAME}"


def test_another_tasks_run_is_neither_adopted_nor_ended(fake: FakeCluster, store: str) -> None:
    other_run(fake)
    trained(remembered(OTHER.name), store)
    assert set(fake.runs) == {NAME, OTHER.name}
    assert "other" in fake.runs[OTHER.name].document.owner


def test_nor_in_another_place(fake: FakeCluster, store: str) -> None:
    with substituted("spot", spot := FakeCluster()):
        other_run(spot)
        trained(remembered(OTHER.name, "spot"), store)
        assert spot.runs[OTHER.name].status.phase is Phase.RUNNING
    assert list(fake.runs) == [NAME]


@pytest.mark.parametrize(
    "states",
    [
        {"training_run": "nonsense"},
        {"training_run": ["a"] * 10_000},
        {"training_run": {"name": 7, "uid": None, "cluster": {}}},
        {"training_failures": {"kind": "rank_failed"}, "training_checkpoint": 7},
        {"training_failures": [{"kind": "no such kind"}]},
        {"training_run": {"name": "run", "uid": "1", "cluster": "no such\x1b[2Jplace"}},
    ],
)
def test_nonsense_is_passed_over(
    fake: FakeCluster, store: str, states: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    trained(FakeStateStore(states), store)
    assert run_in(fake).status.phase is Phase.RUNNING
    assert "\x1b[2J" not in capsys.readouterr().out
