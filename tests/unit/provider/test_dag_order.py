"""A task that waits for a training which begins only after it."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG, BaseOperator

from elastic_runtime.errors import InvalidSettings
from elastic_training.airflow.sdk import AirflowFailException
from elastic_training.clusters.fake import FakeCluster
from elastic_training.operators.scale_task import comes_after
from elastic_training.operators.scale_training import ScaleTrainingOperator
from elastic_training.sensors.scale_workers import ScaleWorkersSensor
from tests.unit.provider.fakes import FakeTaskInstance
from tests.unit.provider.operator_bench import operator


def parse(dag: DAG) -> None:
    """What Airflow does with each DAG of a file, once that is loaded."""
    dag.resolve_template_files()


@pytest.mark.parametrize("kind", [ScaleWorkersSensor, ScaleTrainingOperator])
@pytest.mark.parametrize("between", [0, 2])
def test_a_dag_in_which_it_waits_for_itself_does_not_parse(kind: Any, between: int) -> None:
    with DAG("nightly", schedule=None) as dag:
        last: Any = kind(task_id="before", training_task_id="train", workers=3)
        for number in range(between):
            last = last >> BaseOperator(task_id=f"between_{number}")
        last >> operator()
    with pytest.raises(InvalidSettings, match=r"'train' begins only after this task \('before'\)"):
        parse(dag)


@pytest.mark.parametrize(
    "settings", [{"training_dag_id": "weekly"}, {"training_run_id": "yesterday"}, {"training_run": "latest"}]
)
def test_another_dags_or_another_runs_training_may_be_called_alike(settings: dict[str, str]) -> None:
    with DAG("nightly", schedule=None) as dag:
        ScaleWorkersSensor(task_id="before", training_task_id="train", workers=3, **settings) >> operator()
    parse(dag)


def test_beside_it_all_is_well() -> None:
    with DAG("nightly", schedule=None) as dag:
        prepare = BaseOperator(task_id="prepare")
        prepare >> [ScaleWorkersSensor(task_id="more", training_task_id="train", workers=3), operator()]
    parse(dag)


@pytest.mark.parametrize(
    ("rule", "alone", "after"),
    [("all_success", True, True), ("always", True, False), ("one_success", False, False), ("one_success", True, True)],
)
def test_rules_by_which_a_task_begins_early(rule: str, *, alone: bool, after: bool) -> None:
    with DAG("nightly", schedule=None) as dag:
        first, other = BaseOperator(task_id="first"), BaseOperator(task_id="other")
        second, third = BaseOperator(task_id="second", trigger_rule=rule), BaseOperator(task_id="third")
        first >> second >> third
        if not alone:
            other >> second
    assert comes_after(dag, "third", "first") is after


def test_what_only_rendering_shows_ends_the_task(fake: FakeCluster) -> None:
    with DAG("nightly", schedule=None) as dag:
        waiting = ScaleWorkersSensor(task_id="before", training_task_id="{{ params.training }}", workers=3)
        waiting >> operator()
    parse(dag)
    waiting.training_task_id = "train"
    with pytest.raises(AirflowFailException, match="begins only after"):
        waiting.execute({"ti": FakeTaskInstance("before"), "task": waiting})
