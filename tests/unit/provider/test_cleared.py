"""The one watch for cleared tasks, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from urllib.parse import quote_plus
from uuid import uuid4

import pytest
import sqlalchemy as sa
from airflow.models.renderedtifields import RenderedTaskInstanceFields
from airflow.models.taskinstance import TaskInstance
from asgiref.sync import SyncToAsync
from sqlalchemy.orm import Session

from elastic_training.airflow.versions import _states_in_database, task_states
from elastic_training.identity.ownership import Owner
from elastic_training.triggers import cleared
from elastic_training.triggers.cleared import LOOK, MAX_LENGTH, Instance, Question, questions, until_cleared
from tests.unit.provider.virtual_time import run_virtually

INTERVAL = "AIRFLOW__ELASTIC_TRAINING__CLEAR_INTERVAL"

needs_one_row = pytest.mark.skipif(
    not hasattr(RenderedTaskInstanceFields, "task_id"), reason="Airflow 3.4 has a row for a try, not for an instance"
)

States = dict[Instance, str | None]
# asgiref's own thread stays with the process: begun here, it is none that a test leaves behind.
SyncToAsync.single_thread_executor.submit(int).result()


class Airflow:
    """What it has, and what it was asked."""

    def __init__(self) -> None:
        self.states: States = {}
        self.asked: list[Question] = []
        self.away = False

    async def task_states(
        self, dag_id: str, task_id: str, run_ids: Sequence[str], map_index: int | None
    ) -> dict[tuple[str, int], str | None]:
        self.asked.append(Question(dag_id, task_id, tuple(run_ids), map_index))
        if self.away:
            raise OSError("the database does not answer")
        return {
            (each.run_id, each.map_index): state
            for each, state in self.states.items()
            if (each.dag_id, each.task_id) == (dag_id, task_id)
            and each.run_id in run_ids
            and map_index in (None, each.map_index)
        }


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Airflow]:
    """Which begins and ends without a watch."""
    found = Airflow()
    monkeypatch.setattr(cleared, "task_states", found.task_states)
    yield found
    assert not cleared._watches


def owner(each: Instance) -> Owner:
    return Owner(each.dag_id, each.run_id, each.task_id, each.map_index, 1, "nonce")


def instances(count: int) -> list[Instance]:
    return [Instance("nightly", "train", "monday", index) for index in range(count)]


async def watched(airflow: Airflow, all_of_them: Sequence[Instance], seconds: float) -> list[Instance]:
    """Those of which a waiter was told in that time."""
    airflow.states = dict.fromkeys(all_of_them, "deferred") | airflow.states
    waiters = {each: asyncio.create_task(until_cleared(owner(each))) for each in all_of_them}
    await asyncio.sleep(seconds)
    told = [each for each, waiter in waiters.items() if waiter.done()]
    for waiter in waiters.values():
        waiter.cancel()
    await asyncio.gather(*waiters.values(), return_exceptions=True)
    return told


def test_a_thousand_instances_of_a_task_are_one_question_every_two_minutes(airflow: Airflow) -> None:
    assert run_virtually(watched(airflow, instances(1000), 10 * LOOK + 1)) == []
    assert airflow.asked == [Question("nightly", "train", ("monday",), None)] * 10


def test_the_interval_may_be_set(airflow: Airflow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(INTERVAL, "5")
    assert run_virtually(watched(airflow, instances(1), 26)) == []
    assert len(airflow.asked) == 5


@pytest.mark.parametrize("given", ["0", "-5", "1e6", "nan", "soon"])
def test_an_interval_that_cannot_be_is_a_warning_and_the_default(
    given: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(INTERVAL, given)
    assert cleared.interval() == LOOK
    [record] = caplog.records
    assert "[elastic_training] clear_interval" in record.getMessage()
    assert f"{given!r} is not a number from 1 to 86400" in record.getMessage()


def test_those_that_were_cleared_are_told_and_no_other(airflow: Airflow) -> None:
    both = [Instance("nightly", task_id, "monday", -1) for task_id in ("train", "other")]
    mapped = [Instance("nightly", "mapped", "monday", index) for index in range(10)]
    airflow.states = dict.fromkeys([both[1], mapped[7]])
    assert run_virtually(watched(airflow, [*both, *mapped], LOOK + 1)) == [both[1], mapped[7]]


@pytest.mark.parametrize("state", ["deferred", "running", "queued", "failed"])
def test_a_state_is_no_clear(airflow: Airflow, state: str) -> None:
    airflow.states = dict.fromkeys(instances(1), state)
    assert run_virtually(watched(airflow, instances(1), 10 * LOOK)) == []


def test_an_instance_that_airflow_does_not_know_was_not_cleared(airflow: Airflow) -> None:
    async def watch() -> None:
        waiter = asyncio.create_task(until_cleared(owner(instances(1)[0])))
        await asyncio.sleep(10 * LOOK + 1)
        assert not waiter.done()
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)

    run_virtually(watch())
    assert len(airflow.asked) == 10


def test_a_trigger_that_comes_later_is_looked_at_within_two_minutes_too(airflow: Airflow) -> None:
    early, late = instances(2)

    async def watch() -> float:
        airflow.states = {early: "deferred", late: None}
        first = asyncio.create_task(until_cleared(owner(early)))
        await asyncio.sleep(LOOK - 1)
        begin = asyncio.get_running_loop().time()
        await until_cleared(owner(late))
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        return asyncio.get_running_loop().time() - begin

    assert run_virtually(watch()) <= LOOK


def test_one_question_without_an_answer_keeps_no_other_from_being_asked(airflow: Airflow) -> None:
    there, deaf = Instance("nightly", "train", "monday", -1), Instance("broken", "train", "monday", -1)
    answer = airflow.task_states

    async def task_states(dag_id: str, *more: object) -> object:
        if dag_id == deaf.dag_id:
            raise LookupError("no such DAG")
        return await answer(dag_id, *more)  # type: ignore[arg-type]  # as it was called

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cleared, "task_states", task_states)
        airflow.states = {there: None}
        assert run_virtually(watched(airflow, [deaf, there], LOOK + 1)) == [there]


def test_it_is_asked_again_after_an_outage(airflow: Airflow) -> None:
    (mine,) = instances(1)

    async def watch() -> None:
        airflow.states, airflow.away = {mine: None}, True
        waiter = asyncio.create_task(until_cleared(owner(mine)))
        await asyncio.sleep(3 * LOOK + 1)
        assert not waiter.done()
        airflow.away = False
        await asyncio.sleep(LOOK)
        assert waiter.done()

    run_virtually(watch())


def test_nobody_asks_once_nobody_waits(airflow: Airflow) -> None:
    async def watch() -> None:
        await watched(airflow, instances(5), 10)
        await asyncio.sleep(10 * LOOK)

    run_virtually(watch())
    assert not airflow.asked


@pytest.mark.parametrize("index", [None, 3])
def test_airflow_3_names_a_mapped_instance_by_its_index(monkeypatch: pytest.MonkeyPatch, index: int | None) -> None:
    states = {"monday": {"t": "deferred", "t_3": None, "t_x": None, "t_1_4": None}, "tuesday": {"t_3": "failed"}}
    path = "airflow.sdk.execution_time.task_runner.RuntimeTaskInstance.get_task_states"

    def get_task_states(**asked: object) -> object:
        assert asked == {"dag_id": "d", "task_ids": ["t"], "run_ids": ["monday", "tuesday"], "map_index": index}
        return {run_id: {"t_3": of["t_3"]} if index else of for run_id, of in states.items()}

    monkeypatch.setattr(path, get_task_states)
    SyncToAsync.single_thread_executor.submit(
        int
    ).result()  # Asgiref's own thread: begun here, no test leaves it behind.
    found = run_virtually(task_states("d", "t", ("monday", "tuesday"), index))
    unmapped: dict[tuple[str, int], str | None] = {("monday", -1): "deferred"}
    assert found == {("monday", 3): None, ("tuesday", 3): "failed"} | ({} if index else unmapped)


@needs_one_row
@pytest.mark.parametrize(("index", "found"), [(None, {0, 1}), (1, {1})])
def test_airflow_2_is_asked_in_its_database(
    monkeypatch: pytest.MonkeyPatch, index: int | None, found: set[int]
) -> None:
    table = TaskInstance.__table__
    engine = sa.create_engine("sqlite://", poolclass=sa.pool.StaticPool)
    monkeypatch.setattr("airflow.utils.session.create_session", lambda: Session(engine))
    rows = [(run_id, task_id, at) for run_id in ("a", "b", "c") for task_id in ("t", "u") for at in (0, 1)]
    with engine.begin() as connection:
        connection.execute(sa.schema.CreateTable(table, include_foreign_key_constraints=[]))
        for run_id, task_id, at in rows:
            ids = {"dag_id": "d", "run_id": run_id, "task_id": task_id, "map_index": at}
            state = None if run_id == "a" else "deferred"
            connection.execute(table.insert().values(id=uuid4(), pool="default", state=state, **ids))
    states = _states_in_database("d", "t", ["a", "b", "nowhere"], index)
    engine.dispose()
    assert states == {("a", at): None for at in found} | {("b", at): "deferred" for at in found}


def test_tasks_and_indices_are_not_mixed_in_a_question() -> None:
    few = [Instance("d", "t", run, index) for run in ("a", "b") for index in (0, 1)]
    alone = [Instance("d", task, run, -1) for task in ("u", "v") for run in ("a", "b")]
    assert list(questions([*few, *alone])) == [
        Question("d", "t", ("a", "b"), 0),
        Question("d", "t", ("a", "b"), 1),
        Question("d", "u", ("a", "b"), -1),
        Question("d", "v", ("a", "b"), -1),
    ]


@pytest.mark.parametrize("name", ["scheduled__2026-11-27T00:00:00+00:00", "ü" * 250])
def test_a_question_fits_into_a_url(name: str) -> None:
    all_of_them = [Instance("d", "t", f"{name}{number}"[-250:], -1) for number in range(1000)]
    found = list(questions(all_of_them))
    assert [run_id for each in found for run_id in each.run_ids] == [each.run_id for each in all_of_them]
    assert all(sum(len(quote_plus(run_id)) for run_id in each.run_ids) <= MAX_LENGTH for each in found)
