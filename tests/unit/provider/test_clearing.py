"""A cleared task runs again: with which run, and from which checkpoints."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from elastic_runtime.clock import utc_now
from elastic_runtime.errors import FailureKind, InvalidSettings
from elastic_runtime.run.status import Checkpoint, Phase
from elastic_training.airflow.sdk import AirflowFailException
from elastic_training.archive.where import Address
from elastic_training.clusters.fake import FakeCluster
from elastic_training.concurrency.bridge import run
from elastic_training.exceptions import TrainingFailed
from elastic_training.identity.naming import TaskIdentity, run_name
from elastic_training.identity.ownership import read_owner
from elastic_training.lifecycle.clearing import EarlierRun, OnClear, Start, decide_start, last_try_before_clear
from elastic_training.lifecycle.task_memory import RUN_KEY
from elastic_training.operators import starting
from tests.unit.provider.fake_states import FakeStateStore
from tests.unit.provider.operator_bench import NAME, deferred, operator, run_in, trying
from tests.unit.provider.test_training_run_trigger import started, stopped
from tests.unit.provider.virtual_time import run_virtually

RETRIES = 1
OVER = EarlierRun(1, succeeded=True, folder=None)
FAILED = EarlierRun(1, succeeded=False, folder=None)


def cleared(number: int, after: int) -> Any:
    """A try of a task that was cleared after another one."""
    return trying(number, max_tries=after + RETRIES)


@pytest.mark.parametrize(
    ("earlier", "number", "after", "emptied", "start"),
    [
        (None, 1, 0, True, Start.ADOPT),  # The first try: nothing can be noted yet.
        (FAILED, 2, 0, False, Start.ADOPT),  # A retry.
        (FAILED, 2, 0, True, Start.ADOPT),  # A retry after an upgrade: there was no store before.
        (OVER, 2, 0, False, Start.ADOPT),  # A retry of a try that could not deliver its result.
        (OVER, 2, 1, False, Start.START_OVER),
        (OVER, 2, 1, True, Start.START_OVER),
        (FAILED, 2, 1, False, Start.RESUME),  # Before Airflow 3.4; or with 'Keep task state and resume'.
        (FAILED, 2, 1, True, Start.START_OVER),  # Airflow 3.4.
        (None, 2, 1, True, Start.START_OVER),
        (None, 2, 1, False, Start.ADOPT),  # Removed, and not kept: said.
        (EarlierRun(2, succeeded=False, folder=None), 3, 1, False, Start.ADOPT),  # A retry since the clear.
        (EarlierRun(2, succeeded=True, folder=None), 3, 2, False, Start.START_OVER),  # Cleared twice.
        (OVER, 3, 1, False, Start.START_OVER),  # The first try since the clear has not claimed a run.
    ],
)
def test_how_a_try_starts(earlier: EarlierRun | None, number: int, after: int, emptied: bool, start: Start) -> None:
    decided = decide_start(
        earlier, try_number=number, cleared_after=after, emptied=emptied, on_clear=OnClear.START_OVER
    )
    unknown = after > 0 and earlier is None
    assert (decided.start, bool(decided.note)) == (start, unknown or start is not Start.ADOPT)
    resuming = decide_start(earlier, try_number=number, cleared_after=after, emptied=emptied, on_clear=OnClear.RESUME)
    assert resuming.start is (Start.ADOPT if start is Start.ADOPT else Start.RESUME)


def test_the_last_try_before_a_clear() -> None:
    assert [last_try_before_clear(*each) for each in ((1, 1), (0, 0), (4, 1), (0, 2))] == [0, 0, 3, 0]


def folder_in(fake: FakeCluster) -> str:
    checkpoint = run_in(fake).spec.checkpoint
    assert checkpoint is not None
    return checkpoint.uri.rpartition("/")[2]


def ends(fake: FakeCluster, kind: FailureKind | None = None, *, saves: bool = True) -> Callable[[], None]:
    """With a checkpoint in the run's folder, or without any."""

    def end() -> None:
        checkpoint = run_in(fake).spec.checkpoint
        assert checkpoint is not None
        if saves:
            fake.publish(NAME, step=9, checkpoint=Checkpoint(f"{checkpoint.uri}/step-9", 9, utc_now()))
        fake.fail(NAME, kind, "it broke") if kind else fake.succeed(NAME)

    return end


def attempt(
    fake: FakeCluster,
    ti: Any,
    kind: FailureKind | None = None,
    states: FakeStateStore | None = None,
    *,
    saves: bool = True,
    **more: Any,
) -> str:
    """One whole try. Returns the folder of its checkpoints."""
    seen: list[str] = []
    fake.script(lambda: seen.append(folder_in(fake)), ends(fake, kind, saves=saves))
    context = {"ti": ti} | ({"task_state_store": states} if states is not None else {})
    try:
        operator(**more).execute(context)
    except TrainingFailed:
        assert kind
    return seen[0]


@pytest.mark.parametrize("on_finish", ["keep", "delete"])
def test_a_training_that_succeeded_trains_again_and_its_retries_go_on_from_there(
    fake: FakeCluster, store: str, on_finish: str, capsys: pytest.CaptureFixture[str]
) -> None:
    more = {"checkpoint_uri": store, "on_finish": on_finish}
    assert attempt(fake, trying(), **more) == NAME
    again = attempt(fake, cleared(2, after=1), FailureKind.LAUNCHER_LOST, saves=False, **more)
    assert again.startswith(f"{NAME}-")
    assert "trains again from the beginning" in capsys.readouterr().out
    assert attempt(fake, cleared(3, after=1), **more) == again, "a retry resumes"
    third = attempt(fake, cleared(4, after=3), **more)
    assert third not in (again, NAME)


def test_one_that_failed_goes_on_before_airflow_3_4(fake: FakeCluster, store: str) -> None:
    attempt(fake, trying(), FailureKind.RANK_FAILED, checkpoint_uri=store)
    assert attempt(fake, cleared(2, after=1), checkpoint_uri=store) == NAME


def test_the_setting_goes_on_from_the_end(fake: FakeCluster, store: str) -> None:
    more = {"checkpoint_uri": store, "on_clear": "resume"}
    attempt(fake, trying(), **more)
    assert attempt(fake, cleared(2, after=1), **more) == NAME


def test_task_state_that_airflow_has_discarded_starts_over_and_kept_one_resumes(fake: FakeCluster, store: str) -> None:
    states = FakeStateStore()
    more = {"checkpoint_uri": store, "states": states}
    attempt(fake, trying(), FailureKind.RANK_FAILED, **more)
    assert RUN_KEY in states.values
    assert attempt(fake, cleared(2, after=1), FailureKind.RANK_FAILED, **more) == NAME, "Keep task state and resume"
    states.values.clear()
    anew = attempt(fake, cleared(3, after=2), FailureKind.RANK_FAILED, **more)
    assert anew.startswith(f"{NAME}-")
    assert attempt(fake, cleared(4, after=2), **more) == anew, "a retry resumes"


def test_a_store_that_does_not_answer_costs_no_checkpoint(fake: FakeCluster, store: str) -> None:
    attempt(fake, trying(), FailureKind.RANK_FAILED, checkpoint_uri=store)
    states = FakeStateStore(trouble=RuntimeError("the API server does not answer"))
    assert attempt(fake, cleared(2, after=1), states=states, checkpoint_uri=store) == NAME


def test_a_retry_finds_the_new_folder_though_nothing_was_kept(
    fake: FakeCluster, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what the task remembers: else it would go on from the end of the training before the clear."""
    states = FakeStateStore()
    more = {"checkpoint_uri": store, "on_finish": "delete", "states": states}
    attempt(fake, trying(), **more)
    again = attempt(fake, cleared(2, after=1), FailureKind.LAUNCHER_LOST, saves=False, **more)
    assert again != NAME
    monkeypatch.setattr("elastic_training.operators.starting.read_newest", Mock(side_effect=OSError("away")))
    assert attempt(fake, cleared(3, after=1), **more) == again


def test_what_is_kept_of_a_deleted_dag_run_of_the_same_id_is_not_gone_on_from(fake: FakeCluster, store: str) -> None:
    more = {"checkpoint_uri": store, "on_finish": "delete"}
    attempt(fake, trying(), **more)
    attempt(fake, cleared(2, after=1), FailureKind.LAUNCHER_LOST, **more)
    first = attempt(fake, trying(), FailureKind.LAUNCHER_LOST, **more)
    assert attempt(fake, trying(2), **more) == first == NAME


def continued(fake: FakeCluster, store: str, try_number: int = 1, after: int = 0) -> str:
    """Folder of a task that continues the other, in a try of its own."""
    ti = cleared(try_number, after)
    ti.task_id = "tune"
    deferred(operator(checkpoint_uri=store, continues="train", task_id="tune", deferrable=True), ti)
    name = run_name("nightly", ti.run_id, "tune")
    checkpoint = fake.runs[name].spec.checkpoint
    assert checkpoint is not None
    fake.succeed(name)
    return checkpoint.uri.removeprefix(f"{store}/")


def test_another_training_goes_on_from_the_newest_folder(
    fake: FakeCluster, store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    attempt(fake, trying(), checkpoint_uri=store)
    assert continued(fake, store) == NAME
    assert continued(fake, store, 2, after=1) == NAME, "cleared alone"
    assert "clear 'train' with what is downstream" in capsys.readouterr().out
    newest = attempt(fake, cleared(2, after=1), checkpoint_uri=store)
    assert continued(fake, store, 3, after=2) == newest != NAME


@pytest.mark.parametrize("first", ["the trigger", "the next try"])
def test_a_living_run_is_ended_and_never_adopted_whoever_is_first(fake: FakeCluster, store: str, first: str) -> None:
    parting = deferred(operator(checkpoint_uri=store, deferrable=True), trying())
    before = run_in(fake).spec.uid

    async def clear() -> None:
        watching = await started(parting.trigger)
        await stopped(watching)
        if first == "the trigger":
            await parting.trigger.on_kill()

    run_virtually(clear())
    deferred(operator(checkpoint_uri=store, deferrable=True), cleared(2, after=1))
    if first == "the next try":
        run_virtually(parting.trigger.on_kill())
    now = run_in(fake)
    assert now.spec.uid != before
    assert (now.status.phase, folder_in(fake)) == (Phase.RUNNING, NAME)


def test_a_living_run_is_adopted_by_a_retry(fake: FakeCluster, store: str) -> None:
    deferred(operator(checkpoint_uri=store, deferrable=True), cleared(2, after=1))
    before = run_in(fake).spec.uid
    deferred(operator(checkpoint_uri=store, deferrable=True), cleared(3, after=1))
    assert run_in(fake).spec.uid == before


def test_a_task_that_does_not_wait_trains_again(fake: FakeCluster, store: str) -> None:
    more = {"checkpoint_uri": store, "wait_for_completion": False}
    operator(**more).execute({"ti": trying()})
    ends(fake)()
    operator(**more).execute({"ti": cleared(2, after=1)})
    assert run_in(fake).status.phase is Phase.RUNNING
    assert folder_in(fake) != NAME


def test_a_folder_that_no_run_of_this_name_can_have_is_not_believed(fake: FakeCluster, store: str) -> None:
    deferred(operator(checkpoint_uri=store, deferrable=True), trying())
    owner = run(fake.owner(run(fake.find(NAME))))
    known = read_owner(owner)
    assert known is not None
    for folder in ("..", f"{NAME}-../../x", "other-0123abcd", f"{NAME}-0123ABCD"):
        assert EarlierRun.of(known, run_in(fake).status, NAME, folder).folder is None


def test_a_setting_that_is_none(fake: FakeCluster) -> None:
    with pytest.raises(InvalidSettings, match=r"on_clear.*'start_over', 'resume'"):
        operator(on_clear="again")


def test_iterations_of_a_loop_which_have_the_same_ids_are_refused(fake: FakeCluster) -> None:
    with pytest.raises(AirflowFailException, match="they would share one run"):
        operator().execute({"ti": trying(), "loop": object()})
    assert not fake.runs


def test_a_store_that_never_answers_keeps_a_try_from_starting_for_a_minute_at_most(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers = threading.Event()
    monkeypatch.setattr(starting, "KEEPING_TIMEOUT", 0.05)
    monkeypatch.setattr(starting, "read_newest", lambda *_: answers.wait())
    task = TaskIdentity("nightly", "today", "train", -1)
    try:
        found = run(starting.earlier_run(FakeCluster(), NAME, task, Address("s3://bucket/run"), logging.getLogger()))
    finally:
        answers.set()
    assert found is None
    assert "cannot be read: the store has not answered in 0.05 s" in caplog.text
