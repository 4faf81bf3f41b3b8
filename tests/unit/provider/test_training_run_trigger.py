from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.triggers.base import TriggerEvent
from airflow.utils.state import TaskInstanceState
from asgiref.sync import SyncToAsync

from elastic_runtime.documents import from_plain
from elastic_runtime.errors import ClusterUnavailable, FailureKind
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import Phase, Series, Status
from elastic_runtime.run.status_figures import Hardware
from elastic_training.archive.document import without_curves
from elastic_training.clusters.fake import FakeCluster
from elastic_training.clusters.registry import substituted
from elastic_training.clusters.types import RunRef
from elastic_training.concurrency.bridge import run
from elastic_training.identity.ownership import Owner
from elastic_training.triggers import cleared, training_run
from elastic_training.triggers.training_run import KEEP_TIMEOUT, TrainingRunTrigger
from tests.unit.provider.virtual_time import run_virtually

OWNER = "try 1"
# asgiref's own thread stays with the process: begun here, it is none that a test leaves behind.
SyncToAsync.single_thread_executor.submit(int).result()


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    """Looked at once a virtual second."""
    with substituted("local", cluster := FakeCluster(poll=1)):
        yield cluster


@pytest.fixture
def ref(fake: FakeCluster) -> RunRef:
    return run(fake.claim(RunSpec(name="run", uid="1", command=("python", "train.py")), OWNER)).ref


def trigger_of(ref: RunRef, **more: Any) -> TrainingRunTrigger:
    return TrainingRunTrigger("local", ref.name, ref.uid, OWNER, **more)


async def events_of(trigger: TrainingRunTrigger) -> list[TriggerEvent]:
    return [event async for event in trigger.run()]


async def started(trigger: TrainingRunTrigger) -> asyncio.Task[list[TriggerEvent]]:
    task = asyncio.create_task(events_of(trigger))
    await asyncio.sleep(10)
    return task


async def stopped(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_it_comes_back_from_its_serialized_form(ref: RunRef) -> None:
    path, kwargs = trigger_of(ref).serialize()
    assert path == "elastic_training.triggers.training_run.TrainingRunTrigger"
    assert kwargs == {"cluster": "local", "name": "run", "uid": "1", "owner": OWNER}
    again = TrainingRunTrigger(**trigger_of(ref, deadline="2026-11-21T08:00:00+00:00").serialize()[1])
    assert again.serialize()[1]["deadline"] == "2026-11-21T08:00:00+00:00"


def test_one_event_with_the_whole_final_status(fake: FakeCluster, ref: RunRef) -> None:
    curves: dict[str, Any] = {"series": {"loss": Series(1, (7,), (0.0,), (0.25,))}, "throughput": Series(1, (7,))}
    curves |= {"sample_throughput": Series(1, (7,)), "hardware": {"worker-0": Hardware((1.0,))}}
    fake.script(lambda: fake.publish("run", step=7, metrics={"loss": 0.25}, **curves), lambda: fake.succeed("run"))
    (event,) = run_virtually(events_of(trigger_of(ref)))
    assert event.payload["ending"] == "finished"
    status = from_plain(Status, event.payload["status"])
    assert (status.phase, status.step, status.metrics) == (Phase.SUCCEEDED, 7, {"loss": 0.25})
    assert status == without_curves(status), "they stay with the run"
    assert (status.series, status.throughput, status.hardware) == ({}, Series(), {})


def test_a_deadline_in_the_past_ends_it(fake: FakeCluster, ref: RunRef) -> None:
    past = (datetime.now(UTC) - timedelta(seconds=1)).isoformat()
    (event,) = run_virtually(events_of(trigger_of(ref, deadline=past)))
    assert event.payload["ending"] == "deadline"
    assert run(fake.status(ref)).phase is Phase.RUNNING, "the task itself ends it"


class TestAirflow2AtTheDeadline:
    """Which removes the trigger soon, and may begin nothing else of the task."""

    PAST = "2026-11-21T08:00:00+00:00"

    @pytest.fixture(autouse=True)
    def airflow_2(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(training_run, "times_out_deferred_tasks", lambda: True)
        monkeypatch.delattr("airflow.triggers.base.BaseTrigger.on_kill")

    @pytest.fixture
    def ref(self, fake: FakeCluster, ref: RunRef) -> RunRef:
        """With nothing in its log, so that the status is seen first."""
        fake.named(ref.name).log.clear()
        return ref

    def test_the_run_is_ended_for_that_reason(self, fake: FakeCluster, ref: RunRef) -> None:
        (event,) = run_virtually(events_of(trigger_of(ref, deadline=self.PAST)))
        assert event.payload["ending"] == "deadline"
        assert event.payload["status"]["phase"] == "running", "as it was"
        status = run(fake.status(ref))
        assert (status.failure, status.reason) == (FailureKind.CANCELLED, "execution_timeout has passed")

    def test_a_trigger_that_begins_after_it_says_the_same(self, fake: FakeCluster, ref: RunRef) -> None:
        fake.fail("run", FailureKind.CANCELLED, "cancelled: execution_timeout has passed")
        (event,) = run_virtually(events_of(trigger_of(ref, deadline=self.PAST)))
        assert event.payload["ending"] == "deadline"

    def test_what_a_user_cancelled_stays_cancelled(self, fake: FakeCluster, ref: RunRef) -> None:
        fake.fail("run", FailureKind.CANCELLED, "cancelled: by admin")
        (event,) = run_virtually(events_of(trigger_of(ref, deadline=self.PAST)))
        assert event.payload["ending"] == "finished"

    def test_a_run_that_does_not_end_keeps_no_event_back(self, fake: FakeCluster, ref: RunRef) -> None:
        fake.automatic = False

        async def fired() -> list[TriggerEvent]:
            async with asyncio.timeout(30):
                events = await events_of(trigger_of(ref, deadline=self.PAST))
            await asyncio.sleep(KEEP_TIMEOUT)
            return events

        (event,) = run_virtually(fired())
        assert event.payload["ending"] == "deadline"
        assert fake.named("run").document.cancelled == "execution_timeout has passed"

    def test_nor_does_a_cluster_that_is_away(
        self, fake: FakeCluster, ref: RunRef, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def away(*_: Any) -> None:
            raise ClusterUnavailable("away")

        monkeypatch.setattr(fake, "cancel", away)
        (event,) = run_virtually(events_of(trigger_of(ref, deadline=self.PAST)))
        assert event.payload["ending"] == "deadline"

    @pytest.mark.parametrize(
        ("deadline", "reason"),
        [(PAST, "execution_timeout has passed"), ("2999-01-01T00:00:00+00:00", "the task was ended by a user")],
    )
    def test_a_trigger_that_airflow_removes_gives_the_true_reason(
        self, fake: FakeCluster, monkeypatch: pytest.MonkeyPatch, deadline: str, reason: str
    ) -> None:
        async def failed(*_: Any) -> str:
            return "failed"

        monkeypatch.setattr(training_run, "task_state", failed)
        owner = Owner("nightly", "monday", "train", -1, 1, "nonce").text()
        ref = run(fake.claim(RunSpec(name="run", uid="1", command=("python", "train.py")), owner)).ref
        run_virtually(TrainingRunTrigger("local", ref.name, ref.uid, owner, deadline).cleanup())
        assert run(fake.status(ref)).reason == reason


def test_a_kill_cancels_the_run(fake: FakeCluster, ref: RunRef) -> None:
    async def kill() -> None:
        trigger = trigger_of(ref)
        await stopped(await started(trigger))
        await trigger.on_kill()

    run_virtually(kill())
    assert run(fake.status(ref)).failure is FailureKind.CANCELLED


def test_a_kill_that_airflow_repeats_every_second_cancels_the_run(fake: FakeCluster, ref: RunRef) -> None:
    async def kill() -> None:
        trigger = trigger_of(ref)
        await stopped(await started(trigger))
        killing = asyncio.create_task(trigger.on_kill())
        await asyncio.sleep(1)
        killing.cancel("user-action")
        with pytest.raises(asyncio.CancelledError):
            await killing
        assert run(fake.status(ref)).phase is Phase.RUNNING
        await asyncio.sleep(5)

    run_virtually(kill())
    assert run(fake.status(ref)).failure is FailureKind.CANCELLED


def test_a_kill_before_the_first_look_cancels_too(fake: FakeCluster, ref: RunRef) -> None:
    run_virtually(trigger_of(ref).on_kill())
    assert run(fake.status(ref)).failure is FailureKind.CANCELLED


def test_a_cleared_task_whose_next_try_has_adopted_the_run_does_not_end_it(fake: FakeCluster, ref: RunRef) -> None:
    async def clear() -> None:
        trigger = trigger_of(ref)
        await stopped(await started(trigger))
        killing = asyncio.create_task(trigger.on_kill())
        await asyncio.sleep(2)
        run(fake.claim(RunSpec(name="run", uid="2", command=("python", "train.py")), "try 2"))
        await killing

    run_virtually(clear())
    assert run(fake.status(ref)).phase is Phase.RUNNING


def test_a_false_kill_after_another_triggerer_took_over_does_not_end_the_run(fake: FakeCluster, ref: RunRef) -> None:
    async def stall() -> None:
        stale, healthy = trigger_of(ref), trigger_of(ref)
        stalled = await started(stale)
        watching = await started(healthy)
        await stopped(stalled)
        await stale.on_kill()
        await stopped(watching)

    run_virtually(stall())
    assert run(fake.status(ref)).phase is Phase.RUNNING


def test_a_replaced_trigger_neither_fires_nor_ends_nor_repeats_a_line(
    fake: FakeCluster, ref: RunRef, capsys: pytest.CaptureFixture[str]
) -> None:
    async def stall() -> list[TriggerEvent]:
        stalled = await started(trigger_of(ref))
        watching = await started(trigger_of(ref))
        fake.write_log("run", "a line of the run")
        fake.succeed("run")
        events = await watching
        await asyncio.sleep(3600)
        assert not stalled.done()
        await stopped(stalled)
        return events

    (event,) = run_virtually(stall())
    assert event.payload["ending"] == "finished"
    assert capsys.readouterr().out.count("a line of the run") == 1


def test_cleanup_ends_nothing(fake: FakeCluster, ref: RunRef) -> None:
    async def restart() -> None:
        trigger = trigger_of(ref)
        await stopped(await started(trigger))
        await trigger.cleanup()

    run_virtually(restart())
    assert run(fake.status(ref)).phase is Phase.RUNNING


def test_a_kill_of_what_is_gone_is_harmless(fake: FakeCluster, ref: RunRef) -> None:
    run(fake.delete(ref, OWNER))
    run_virtually(trigger_of(ref).on_kill())


class TestBelowAirflow33:
    """Which has no on_kill: what became of the task is asked when the trigger ends."""

    @pytest.fixture(autouse=True)
    def older(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr("airflow.triggers.base.BaseTrigger.on_kill")

    @pytest.fixture
    def states(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
        """What Airflow answers, by run and by the name of the task instance."""
        answer: dict[str, Any] = {"monday": {}}
        path = "airflow.sdk.execution_time.task_runner.RuntimeTaskInstance.get_task_states"

        def get_task_states(**asked: Any) -> dict[str, Any]:
            assert asked == {
                "dag_id": "nightly",
                "task_ids": ["train"],
                "run_ids": ["monday"],
                "map_index": asked["map_index"],
            }
            if "broken" in answer:
                raise RuntimeError("the API server does not answer")
            return answer

        monkeypatch.setattr(path, get_task_states)
        return answer

    @pytest.fixture
    def owner(self) -> Owner:
        return Owner("nightly", "monday", "train", -1, 1, "nonce")

    @pytest.mark.parametrize(
        "state", ["failed", "success", "skipped", "removed", "queued", "scheduled", "running", None]
    )
    def test_a_task_that_was_marked_or_cleared_ends_its_run(
        self, fake: FakeCluster, states: dict[str, Any], owner: Owner, state: str | None
    ) -> None:
        states["monday"]["train"] = state
        assert self.ended(fake, owner) is FailureKind.CANCELLED

    @pytest.mark.parametrize("index", [0, 7])
    def test_a_mapped_task_is_found_by_its_index(
        self, fake: FakeCluster, states: dict[str, Any], owner: Owner, index: int
    ) -> None:
        states["monday"][f"train_{index}"] = "failed"
        assert self.ended(fake, replace(owner, map_index=index)) is FailureKind.CANCELLED

    def test_a_triggerer_that_ends_does_not_end_the_run(
        self, fake: FakeCluster, states: dict[str, Any], owner: Owner
    ) -> None:
        states["monday"]["train"] = TaskInstanceState.DEFERRED
        assert self.ended(fake, owner) is None

    @pytest.mark.parametrize("answer", [{}, {"broken": True}])
    def test_what_airflow_does_not_tell_ends_nothing(
        self, fake: FakeCluster, states: dict[str, Any], owner: Owner, answer: dict[str, Any]
    ) -> None:
        states.update(answer)
        assert self.ended(fake, owner) is None

    def test_the_next_try_of_a_cleared_task_keeps_the_run(
        self, fake: FakeCluster, states: dict[str, Any], owner: Owner
    ) -> None:
        states["monday"]["train"] = "queued"
        adopting = lambda: run(fake.claim(RunSpec(name="run", uid="2", command=("python",)), "try 2"))  # noqa: E731
        assert self.ended(fake, owner, meanwhile=adopting) is None

    def test_nothing_is_asked_once_the_event_has_fired(
        self, fake: FakeCluster, states: dict[str, Any], owner: Owner
    ) -> None:
        states["broken"] = True
        ref = run(fake.claim(RunSpec(name="run", uid="1", command=("python",)), owner.text())).ref
        trigger = TrainingRunTrigger("local", ref.name, ref.uid, owner.text())
        fake.script(lambda: fake.succeed("run"))

        async def to_the_end() -> None:
            assert len(await events_of(trigger)) == 1
            await trigger.cleanup()

        run_virtually(to_the_end())

    @staticmethod
    def ended(fake: FakeCluster, owner: Owner, meanwhile: Callable[[], object] = lambda: None) -> FailureKind | None:
        """How the run has ended after a trigger's end, of which Airflow speaks every second."""
        ref = run(fake.claim(RunSpec(name="run", uid="1", command=("python", "train.py")), owner.text())).ref

        async def end() -> None:
            trigger = TrainingRunTrigger("local", ref.name, ref.uid, owner.text())
            await stopped(await started(trigger))
            cleaning = asyncio.create_task(trigger.cleanup())
            await asyncio.sleep(1)
            cleaning.cancel()
            await asyncio.wait([cleaning])
            meanwhile()
            await asyncio.sleep(10)

        run_virtually(end())
        return run(fake.status(ref)).failure


def test_airflow_that_calls_on_kill_is_not_asked(fake: FakeCluster, ref: RunRef) -> None:
    async def end() -> None:
        trigger = trigger_of(ref)
        await stopped(await started(trigger))
        await trigger.cleanup()

    run_virtually(end())
    assert run(fake.status(ref)).phase is Phase.RUNNING


@pytest.mark.parametrize("below", [False, True])
class TestClearedInAPausedDag:
    """Whose triggers Airflow leaves alone: the state is NULL."""

    @pytest.fixture(autouse=True)
    def older(self, monkeypatch: pytest.MonkeyPatch, *, below: bool) -> None:
        if below:
            monkeypatch.delattr("airflow.triggers.base.BaseTrigger.on_kill")

    @staticmethod
    def seen(fake: FakeCluster, patch: pytest.MonkeyPatch, *states: Any) -> tuple[FailureKind | None, bool]:
        """How the run has ended, and whether an event was fired, after Airflow's answers."""
        answers = list(states)

        async def told(*_: Any) -> Any:
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
            if isinstance(answer, Exception):
                raise answer
            return {("monday", -1): answer}

        patch.setattr(cleared, "task_states", told)
        owner = Owner("nightly", "monday", "train", -1, 1, "nonce").text()
        ref = run(fake.claim(RunSpec(name="run", uid="1", command=("python", "train.py")), owner)).ref
        trigger = TrainingRunTrigger("local", ref.name, ref.uid, owner)

        async def watch() -> bool:
            watching = await started(trigger)
            await asyncio.sleep(600)
            fired = watching.done()
            await stopped(watching)
            return fired

        fired = run_virtually(watch())
        return run(fake.status(ref)).failure, fired

    def test_its_run_is_ended_and_nothing_is_fired(self, fake: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.seen(fake, monkeypatch, "deferred", None) == (FailureKind.CANCELLED, False)

    @pytest.mark.parametrize("state", ["deferred", "running", "queued", LookupError("no such task"), OSError("away")])
    def test_anything_else_ends_nothing(self, fake: FakeCluster, monkeypatch: pytest.MonkeyPatch, state: Any) -> None:
        assert self.seen(fake, monkeypatch, state) == (None, False)
