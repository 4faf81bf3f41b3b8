"""What Airflow's states of a training task are taken for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from elastic_training.lifecycle.training_task import TrainingTask
from elastic_training.scaling import airflow_tasks
from elastic_training.scaling.airflow_tasks import FINISHED, GRACE, UNFINISHED, TaskView, TrainingOutlook, view_of
from tests.unit.provider.fake_airflow import FakeAirflow
from tests.unit.provider.virtual_time import run_virtually

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
TASK = TrainingTask("nightly", "train", "today")
LATEST = TrainingTask("nightly", "train")


def seen(airflow: FakeAirflow, task: TrainingTask, patch: pytest.MonkeyPatch, since: timedelta = GRACE) -> TaskView:
    airflow.install(patch)
    return run_virtually(view_of(task, NOW - since, NOW))


@pytest.mark.parametrize("state", [None, *UNFINISHED[1:]])
def test_a_task_that_has_not_finished_may_train(state: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    airflow = FakeAirflow({"nightly": {"today": {"train": state}}})
    assert seen(airflow, TASK, monkeypatch).outlook is TrainingOutlook.TRAINS
    assert seen(airflow, LATEST, monkeypatch).outlook is TrainingOutlook.TRAINS


@pytest.mark.parametrize("state", sorted(FINISHED))
def test_one_that_has_finished_will_not(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    airflow = FakeAirflow({"nightly": {"today": {"train": state}}})
    view = seen(airflow, TASK, monkeypatch)
    assert view.outlook is TrainingOutlook.OVER
    assert state in view.words
    assert seen(airflow, LATEST, monkeypatch).outlook is TrainingOutlook.OVER


def test_a_typo_names_what_may_be_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    airflow = FakeAirflow({"nightly": {"today": {"prepare": "success", "models.train": None, "trian": None}}})
    view = seen(airflow, TASK, monkeypatch)
    assert view.outlook is TrainingOutlook.NONE
    assert "'trian'" in view.words
    far = seen(airflow, TrainingTask("nightly", "xyz", "today"), monkeypatch)
    assert "There are 'models.train', 'prepare', 'trian'" in far.words


def test_many_tasks_are_not_all_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    airflow = FakeAirflow({"nightly": {"today": {f"step-{number:05}": None for number in range(5000)}}})
    assert len(seen(airflow, TrainingTask("nightly", "zzz", "today"), monkeypatch).words) < 1000


def test_a_dag_or_a_run_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    airflow = FakeAirflow({"nightly": {"yesterday": {"train": "success"}}})
    assert "no DAG run 'today'" in seen(airflow, TASK, monkeypatch).words
    nobody = seen(airflow, TrainingTask("nigthly", "train", "today"), monkeypatch)
    assert (nobody.outlook, "no DAG of that id" in nobody.words) == (TrainingOutlook.NONE, True)
    for latest in (TrainingTask("nigthly", "train"), TrainingTask("nightly", "trian")):
        assert seen(airflow, latest, monkeypatch).outlook is TrainingOutlook.NONE
        assert seen(airflow, latest, monkeypatch, GRACE / 2).outlook is TrainingOutlook.TRAINS


def test_mapped_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    mapped = TrainingTask("nightly", "train", "today", 1)
    expanded = FakeAirflow({"nightly": {"today": {"train_0": "success", "train_1": "running"}}})
    assert seen(expanded, mapped, monkeypatch).outlook is TrainingOutlook.TRAINS
    assert seen(expanded, TASK, monkeypatch).outlook is TrainingOutlook.NONE
    not_yet = FakeAirflow({"nightly": {"today": {"train": None}}})
    assert seen(not_yet, mapped, monkeypatch).outlook is TrainingOutlook.TRAINS


def test_a_run_by_its_logical_date(monkeypatch: pytest.MonkeyPatch) -> None:
    dated = TrainingTask("nightly", "train", None, -1, NOW)
    airflow = FakeAirflow({"nightly": {"made by hand": {"train": "running"}}}, {NOW: "made by hand"})
    assert seen(airflow, dated, monkeypatch).task.run_id == "made by hand"
    airflow.dates.clear()
    assert seen(airflow, dated, monkeypatch).outlook is TrainingOutlook.TRAINS


def test_an_airflow_that_does_not_answer_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    airflow = FakeAirflow(trouble=ConnectionError("away"))
    assert seen(airflow, TASK, monkeypatch).outlook is TrainingOutlook.UNKNOWN


def test_airflow_3_is_asked_as_its_own_triggers_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    class Instance:
        @staticmethod
        def get_task_states(**about: Any) -> Any:
            asked.append(about)
            return {"today": {"train": "failed"}}

        @staticmethod
        def get_ti_count(**about: Any) -> int:
            asked.append(about)
            return 0

        @staticmethod
        def get_dr_count(**about: Any) -> int:
            asked.append(about)
            return 0

    monkeypatch.setattr(airflow_tasks, "_instance", lambda: Instance)
    assert run_virtually(view_of(TASK, NOW, NOW)).outlook is TrainingOutlook.OVER
    assert asked == [{"dag_id": "nightly", "run_ids": ["today"], "logical_dates": None}]
    assert run_virtually(view_of(LATEST, NOW - GRACE, NOW)).outlook is TrainingOutlook.NONE
    assert [about.get("states") and "null" in about["states"] for about in asked[1:]] == [True, None, None]
