"""A person chooses the way when a training's workers have stayed away."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import DAG, AirflowFailException, BaseOperator
from airflow.sdk.exceptions import TaskAwaitingInput
from airflow.serialization.serialized_objects import DagSerialization

from elastic_runtime.errors import InvalidSettings
from elastic_training.operators import capacity_decision
from elastic_training.operators.capacity_decision import (
    ELSEWHERE,
    FEWER,
    GIVE_UP,
    WAIT_ON,
    CapacityDecisionOperator,
    question,
)
from tests.unit.provider.fake_airflow import FakeAirflow
from tests.unit.provider.fakes import FakeTaskInstance

FAILURE = {
    "run": "nightly-train-0123456789",
    "failure": "max_wait_exceeded",
    "reason": "1 of at least 2 workers are there, for 1800 s",
    "steps": 1200,
    "checkpoint": {"uri": "s3://bucket/run/00001200", "step": 1200, "time": "2026-11-22T08:00:00.000Z"},
    "world_sizes": [8, 4],
    "seconds": 7200.0,
    "worker_seconds_total": 36000.0,
}


class Asked(FakeTaskInstance):
    """With what the training has left."""

    failure: Any = None
    id = "0197c0de-0000-7000-8000-000000000000"

    def xcom_pull(self, *, task_ids: str, key: str) -> Any:
        assert (task_ids, key) == ("train", "failure")
        return self.failure


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """That people see."""
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(
        "airflow.providers.standard.operators.hitl.upsert_hitl_detail", lambda **detail: asked.append(detail)
    )
    return asked


@pytest.fixture
def skipped(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """All but these, of the branches."""
    kept: list[Any] = []
    monkeypatch.setattr(
        CapacityDecisionOperator,
        "skip_all_except",
        lambda self, ti, ids: kept.append(None if ids is None else list(ids)),
    )
    return kept


@pytest.fixture(autouse=True)
def airflow(monkeypatch: pytest.MonkeyPatch) -> FakeAirflow:
    """In which the training has failed."""
    airflow = FakeAirflow({"nightly": {FakeTaskInstance("train").run_id: {"train": "failed"}}})
    monkeypatch.setattr(capacity_decision, "present_airflow", lambda: airflow)
    return airflow


@pytest.fixture
def decide() -> Iterator[CapacityDecisionOperator]:
    with DAG("nightly", schedule=None):
        made = CapacityDecisionOperator(task_id="decide", training_task_id="train", wait_on="again", fewer="small")
        made >> [BaseOperator(task_id=each) for each in ("again", "small")]
        yield made


def context(decide: CapacityDecisionOperator, failure: Any = None) -> dict[str, Any]:
    ti = Asked("decide")
    ti.failure, ti.task = failure, decide  # type: ignore[attr-defined]
    return {"ti": ti, "task_instance": ti, "task": decide}


def answered(option: str) -> dict[str, Any]:
    return {
        "chosen_options": [option],
        "params_input": {},
        "responded_at": datetime.now(UTC),
        "responded_by_user": {"id": "1", "name": "admin"},
        "timedout": False,
    }


def test_a_person_is_asked_with_the_figures(decide: CapacityDecisionOperator, questions: list[dict[str, Any]]) -> None:
    with pytest.raises(TaskAwaitingInput):
        decide.execute(context(decide, FAILURE))
    (asked,) = questions
    assert asked["options"] == [WAIT_ON, FEWER, GIVE_UP]
    assert asked["subject"] == "Too few workers for the training 'train'"
    for figure in ("max_wait_exceeded", "1 of at least 2 workers", "step 1200", "8, 4", "2.00 hours", "10.00 hours"):
        assert figure in asked["body"]


@pytest.mark.parametrize(("option", "task"), [(WAIT_ON, "again"), (FEWER, "small")])
def test_the_chosen_branch_goes_on(
    decide: CapacityDecisionOperator, skipped: list[Any], option: str, task: str
) -> None:
    decide.execute_complete(context(decide, FAILURE), answered(option))
    assert skipped == [[task]]


def test_giving_up_fails_the_dag_run_unless_there_is_a_task_for_it(
    decide: CapacityDecisionOperator, skipped: list[Any]
) -> None:
    with pytest.raises(AirflowFailException, match="given up"):
        decide.execute_complete(context(decide, FAILURE), answered(GIVE_UP))
    with DAG("nightly", schedule=None):
        tidy = CapacityDecisionOperator(task_id="decide", training_task_id="train", fewer="small", give_up="sweep")
        tidy.execute_complete(context(tidy, FAILURE), answered(GIVE_UP))
    assert skipped == [["sweep"]]


@pytest.mark.parametrize("state", ["success", "skipped"])
@pytest.mark.parametrize("failure", [None, FAILURE | {"failure": "rank_failed"}, FAILURE])
def test_after_a_training_that_did_not_fail_all_branches_are_skipped(
    decide: CapacityDecisionOperator, skipped: list[Any], airflow: FakeAirflow, state: str, failure: Any
) -> None:
    """Whatever it has left: one that ``skip_on_exit_code`` skips has pushed its failure."""
    airflow.dags["nightly"][FakeTaskInstance("train").run_id] = {"train": state}
    decide.execute(context(decide, failure))
    assert skipped == [None]


@pytest.mark.parametrize("states", [{"train": "failed"}, {"train": "upstream_failed"}, {}])
def test_a_failure_that_is_none_of_capacity_is_no_question(
    decide: CapacityDecisionOperator, airflow: FakeAirflow, states: dict[str, str | None]
) -> None:
    airflow.dags["nightly"][FakeTaskInstance("train").run_id] = states
    with pytest.raises(AirflowFailException, match="no failure to ask about"):
        decide.execute(context(decide))
    with pytest.raises(AirflowFailException, match="not for want of workers: rank_failed"):
        decide.execute(context(decide, FAILURE | {"failure": "rank_failed"}))


def test_what_a_training_says_is_not_rendered(
    decide: CapacityDecisionOperator, questions: list[dict[str, Any]]
) -> None:
    with pytest.raises(TaskAwaitingInput):
        decide.execute(context(decide, FAILURE | {"reason": "{{ conn.db.password }}"}))
    assert "{{ conn.db.password }}" in questions[0]["body"]


@pytest.mark.parametrize("document", [{}, {"checkpoint": None, "world_sizes": "8"}, {"checkpoint": 7, "seconds": "x"}])
def test_a_document_that_lacks_something_is_told_of_as_far_as_it_goes(document: dict[str, Any]) -> None:
    assert "the beginning" in question(document)


@pytest.mark.parametrize(
    ("steps", "started", "told"), [(None, "2026-11-22T08:00:00.000Z", "unknown"), (None, None, "none"), (0, None, "0")]
)
def test_steps_that_were_not_told_are_unknown(steps: int | None, started: str | None, told: str) -> None:
    assert f"* steps done: `{told}`" in question(FAILURE | {"steps": steps, "started": started})


@pytest.mark.parametrize(
    ("wrong", "field"),
    [({}, "wait_on"), ({"give_up": "x"}, "wait_on"), ({"fewer": "small", "default": ELSEWHERE}, "default")],
)
def test_what_cannot_work_is_refused_at_parse(wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidSettings) as caught:
        CapacityDecisionOperator(task_id="decide", training_task_id="train", **wrong)
    assert caught.value.field == field


def test_an_older_airflow_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity_decision, "human_branch", lambda: None)
    with pytest.raises(InvalidSettings, match=r"older than 3\.1"):
        CapacityDecisionOperator(task_id="decide", training_task_id="train", fewer="small")


def test_it_comes_after_whatever_became_of_the_training_and_is_serialised(decide: CapacityDecisionOperator) -> None:
    dag = decide.dag
    assert dag is not None
    found = DagSerialization.from_dict(DagSerialization.to_dict(dag)).get_task("decide")
    assert found.trigger_rule == "all_done"
