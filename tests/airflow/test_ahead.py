"""What only a recent Airflow can, through its real components: policies, memory, events of assets, people."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from demo_kit.airflow_stack import AirflowStack
from demo_kit.digits_run import LOOK
from tests.airflow.real_airflow import Airflow, completed, stack_without, trainings_of

pytestmark = pytest.mark.timeout(900)
TESTS = Path(__file__).parent
DAG_IDS = ("watched", "evaluate", "compare", "doomed", "undecided")


@pytest.fixture(scope="module")
def steered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder by whose files the trainings are steered."""
    return tmp_path_factory.mktemp("steered")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, steered: Path) -> Iterator[AirflowStack]:
    home = tmp_path_factory.mktemp("airflow") / "home"
    more = {"AHEAD_FOLDER": str(steered), "AHEAD_SCRIPT": str(TESTS / "scripts" / "steady.py")}
    with stack_without(("triggerer",), home, trainings_of(home), TESTS / "dags", DAG_IDS, **more) as running:
        yield running


@pytest.fixture
def airflow(stack: AirflowStack) -> Iterator[Airflow]:
    with completed(stack, ("triggerer",), trainings_of(stack.settings.home)) as running:
        yield running


def wait(airflow: Airflow, holds: Callable[[], bool], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        airflow.stack.check()
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(LOOK)


def state(airflow: Airflow, dag: str, run: str, task: str = "train") -> str:
    return airflow.api.task_states(dag, run).get(task, "none")


def scheduler_knows_it_waits(airflow: Airflow, task: str) -> bool:
    """Whether the scheduler has heard that the first part of a task is over.

    An answer before that queues the second part, and the scheduler takes the news of the first for its end: it fails
    the task ("finished with state success, but the task instance's state attribute is queued"). Nobody is so quick.
    """
    lines = (airflow.stack.logs / "scheduler.log").read_text().splitlines()
    return any("executor event" in line and f"task_id='{task}'" in line for line in lines)


def told(airflow: Airflow, dag: str) -> list[list[int]]:
    """Steps of the checkpoints that each run of a DAG was begun for."""
    return [sorted(airflow.api.xcom(dag, run, "evaluate")) for run in airflow.api.succeeded(dag)]


def evaluated(airflow: Airflow, more: int) -> None:
    """Wait for so many evaluations from now on."""
    before = len(told(airflow, "evaluate"))
    wait(airflow, lambda: len(told(airflow, "evaluate")) >= before + more)


def test_a_person_decides(airflow: Airflow) -> None:
    run = airflow.api.trigger("undecided", {})
    wait(airflow, lambda: state(airflow, "undecided", run, "decide") in ("awaiting_input", "deferred"))
    wait(airflow, lambda: scheduler_knows_it_waits(airflow, "decide"))
    asked = airflow.api.question("undecided", run, "decide")
    assert asked["options"] == ["Wait on", "Go on with fewer workers", "Give up"]
    assert "* steps done: `9`" in asked["body"]
    airflow.api.answer("undecided", run, "decide", "Go on with fewer workers")
    wait(airflow, lambda: state(airflow, "undecided", run, "small") == "success")
    assert state(airflow, "undecided", run, "again") == "skipped"


def test_a_script_that_fails_at_one_step_twice_is_not_tried_a_third_time(airflow: Airflow) -> None:
    run = airflow.api.trigger("doomed", {})
    wait(airflow, lambda: state(airflow, "doomed", run) == "failed")
    (task,) = airflow.api.task_instances("doomed", run)
    assert task["try_number"] == 2
    failures = airflow.api.state_store("doomed", run, "train")["training_failures"]
    assert [(each["kind"], each["step"], each["final"]) for each in failures] == [
        ("rank_failed", 5, False),
        ("rank_failed", 5, True),
    ]


def test_each_checkpoint_is_evaluated_once_whatever_is_killed_meanwhile(airflow: Airflow, steered: Path) -> None:
    run = airflow.api.trigger("watched", {})
    evaluated(airflow, 2)
    assert state(airflow, "watched", run) == "deferred"
    assert airflow.api.state_store("watched", run, "train")["training_run"]["cluster"] == "local"
    airflow.stack.kill_component("triggerer")
    airflow.stack.start_component("triggerer")
    evaluated(airflow, 2)
    (launcher,) = [each for each in airflow.training_processes() if "elastic_runtime.launcher" in each.cmdline()]
    launcher.kill()
    # Its retry_delay is an hour.
    wait(airflow, lambda: airflow.api.task_instances("watched", run)[0]["try_number"] == 2)
    evaluated(airflow, 2)
    (steered / "end").touch()
    wait(airflow, lambda: state(airflow, "watched", run) == "success")
    assert airflow.api.state_store("watched", run, "train")["training_failures"] == []
    for dag in ("evaluate", "compare"):
        steps = [step for each in told(airflow, dag) for step in each]
        assert len(steps) >= 6
        assert steps == sorted(set(steps)), "told twice, or out of order"
