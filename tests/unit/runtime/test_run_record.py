"""What has happened, and the status document made from it."""

from __future__ import annotations

import io
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from elastic_runtime.documents import from_json, to_json
from elastic_runtime.launcher.agents import AgentConnection
from elastic_runtime.launcher.platform import Machine
from elastic_runtime.launcher.record.output import LAST_LINE_LENGTH, OutputLog
from elastic_runtime.launcher.record.run_record import RunRecord
from elastic_runtime.launcher.worker_pool import Slot, Worker
from elastic_runtime.rank_link import (
    CheckpointFailed,
    CheckpointSkipped,
    CheckpointWritten,
    Metrics,
    Progress,
    Resumed,
)
from elastic_runtime.rank_names import RankName, WorkerName
from elastic_runtime.series import MAX_ALL_POINTS, MAX_POINTS
from elastic_runtime.spec import RunSpec
from elastic_runtime.status import (
    EARLIER_WORKERS,
    MAX_EVENTS,
    MAX_HISTORY,
    MAX_METRICS,
    MAX_PAST_WORKERS,
    MAX_REASON,
    MAX_SIZES_ASKED,
    MAX_WORKER_SECONDS,
    Checkpoint,
    EventKind,
    FailureKind,
    Phase,
    Series,
    Status,
    WorkerState,
    World,
)
from elastic_runtime.wire import Hello

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


@dataclass
class Clock:
    now: datetime = NOON

    def __call__(self) -> datetime:
        return self.now

    def tick(self, seconds: float) -> datetime:
        self.now += timedelta(seconds=seconds)
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def record(clock: Clock) -> RunRecord:
    return RunRecord(RunSpec("run", "uid", ("true",)), clock)


def worker(name: str = "worker-0", slots: int = 1) -> Worker:
    connection = AgentConnection(Hello(name, "node", 7, slots, "lo"), writer=None)  # type: ignore[arg-type]  # nothing is sent
    return Worker(connection, [Slot(RankName(WorkerName(name), index)) for index in range(slots)], NOON)


def kinds(status: Status) -> list[EventKind]:
    return [event.kind for event in status.events]


class TestStanding:
    def test_at_first(self, record: RunRecord) -> None:
        status = record.status([], {}, 2)
        assert (status.run, status.uid, status.phase, status.updated) == ("run", "uid", Phase.STARTING, NOON)
        assert (status.target_size, status.world_size, status.generation) == (2, 0, 0)
        assert (status.started, status.finished, status.step, status.checkpoint) == (None, None, None, None)

    def test_worlds_come_and_go(self, record: RunRecord, clock: Clock) -> None:
        first = clock.tick(1)
        record.world(["a", "b"])
        record.rank_said(Progress(7), "worker-0")
        second = clock.tick(1)
        record.world(["a"])
        third = clock.tick(1)
        record.no_world()
        record.no_world()
        status = record.status([], {}, 2)
        assert status.history == (World(first, 2, 1), World(second, 1, 2, 7), World(third, 0, 2, 7))
        assert (status.started, status.generation, status.world_size) == (first, 2, 0)
        assert [(event.kind, event.world_size, event.step) for event in status.events] == [
            (EventKind.STARTED, 2, None),
            (EventKind.SCALED, 1, 7),
        ]

    def test_tells_of_a_suspension_once_and_of_its_end(self, record: RunRecord) -> None:
        for phase in (
            *(Phase.STARTING, Phase.RUNNING, Phase.RUNNING),
            *(Phase.SUSPENDED, Phase.SUSPENDED, Phase.RUNNING),
        ):
            record.stand(phase, f"it is {phase}")
        status = record.status([], {}, 1)
        assert kinds(status) == [EventKind.SUSPENDED, EventKind.RESUMED]
        assert (status.phase, status.reason) == (Phase.RUNNING, "it is running")

    @pytest.mark.parametrize("end", [Phase.SUCCEEDED, Phase.FAILED])
    def test_an_end_that_is_only_decided_is_no_end_yet(self, record: RunRecord, end: Phase) -> None:
        record.stand(Phase.RUNNING, "2 ranks train")
        record.stand(end, "it is decided")
        status = record.status([], {}, 1)
        assert (status.phase, status.reason) == (Phase.RUNNING, "2 ranks train")

    def test_finishes(self, record: RunRecord, clock: Clock) -> None:
        end = clock.tick(5)
        record.finish(Phase.FAILED, "nobody came", FailureKind.START_TIMEOUT)
        status = record.status([], {}, 1)
        assert (status.phase, status.reason, status.failure, status.finished) == (
            *(Phase.FAILED, "nobody came", FailureKind.START_TIMEOUT, end),
        )
        assert status.events[-1].message == "failed: nobody came"


class TestRanks:
    def test_report(self, record: RunRecord) -> None:
        record.rank_said(Metrics({"loss": 2.0, "accuracy": 0.1}), "worker-0")
        record.rank_said(Metrics({"loss": 1.0}, step=3), "worker-0")
        record.rank_said(Progress(3), "worker-0")
        status = record.status([], {}, 1)
        assert (status.metrics, status.step, status.events) == ({"loss": 1.0, "accuracy": 0.1}, 3, ())

    def test_report_over_steps(self, record: RunRecord, clock: Clock) -> None:
        record.rank_said(Metrics({"loss": 9.0}), "worker-0")  # of no step that anybody knows
        for step in range(1, 6):
            clock.tick(2)
            record.rank_said(Metrics({"loss": 10.0 / step}, step=step), "worker-0")
            record.rank_said(Progress(2 * step), "worker-0")
        record.rank_said(Metrics({"accuracy": 0.5}), "worker-0")
        status = record.status([], {}, 1)
        noon = NOON.timestamp()
        times = tuple(noon + seconds for seconds in (2, 4, 6, 8, 10))
        assert status.series == {
            "loss": Series(1, (1, 2, 3, 4, 5), times, (10.0, 5.0, 3.33333, 2.5, 2.0)),
            "accuracy": Series(1, (10,), (noon + 10,), (0.5,)),
        }
        assert status.throughput == Series(1, (4, 6, 8, 10), times[1:], (1.0,) * 4)

    def test_come_in_bunches(self, record: RunRecord, clock: Clock) -> None:
        for second, step in ((0, 10), (2, 20), (2.001, 24), (2.5, 26), (4, 30)):
            clock.now = NOON + timedelta(seconds=second)
            record.rank_said(Progress(step), "worker-0")
        throughput = record.status([], {}, 1).throughput
        assert (throughput.steps, throughput.values) == ((20, 30), (5.0, 5.0))

    def test_go_back(self, record: RunRecord, clock: Clock) -> None:
        for step in (1, 2, 3, 4):
            clock.tick(1)
            record.rank_said(Progress(step), "worker-0")
            record.rank_said(Metrics({"loss": float(step)}), "worker-0")
        record.rank_said(Resumed("f/2", 2), "worker-0")
        clock.tick(60)
        record.rank_said(Progress(3), "worker-0")
        status = record.status([], {}, 1)
        assert status.series["loss"].steps == (1, 2)
        assert status.throughput.steps == (2,)

    @pytest.mark.parametrize(
        ("message", "kind", "words"),
        [
            (CheckpointWritten("f/3", 3, NOON, False, 0.5), EventKind.CHECKPOINT, "of step 3 at f/3 in 0.50 s"),
            (CheckpointWritten("f/3", 3, NOON, True, 0.5), EventKind.HANDOVER, "of step 3 at f/3 in 0.50 s"),
            (CheckpointFailed(3, "disk full"), EventKind.CHECKPOINT, "of step 3 FAILED: disk full"),
            (CheckpointSkipped("f/3", "torn"), EventKind.CHECKPOINT_SKIPPED, "f/3 is not used: torn"),
            (Resumed("f/3", 3), EventKind.RESUMED, "of step 3 at f/3"),
        ],
    )
    def test_tell_of_checkpoints(self, record: RunRecord, message: Resumed, kind: EventKind, words: str) -> None:
        record.rank_said(message, "worker-0")
        status = record.status([], {}, 1)
        [event] = status.events
        assert (event.kind, event.worker, event.step) == (kind, "worker-0", getattr(message, "step", None))
        assert event.message.endswith(words)
        written = isinstance(message, CheckpointWritten)
        assert status.checkpoint == (Checkpoint("f/3", 3, NOON) if written else None)
        assert status.step == (3 if written or isinstance(message, Resumed) else None)

    @pytest.mark.parametrize(("heard", "newest"), [(2, 3), (9, 9)])
    def test_tell_of_a_checkpoint_before_or_after_its_step(self, record: RunRecord, heard: int, newest: int) -> None:
        record.rank_said(Progress(heard), "worker-0")
        record.rank_said(CheckpointWritten("f/3", 3, NOON, True, 0.5), "worker-0")
        record.rank_said(CheckpointFailed(3, "disk full"), "worker-0")
        status = record.status([], {}, 1)
        assert [event.step for event in status.events] == [3, 3]
        assert status.step == newest


class TestWorkers:
    def test_live_from_starting_to_leaving(self, record: RunRecord, clock: Clock) -> None:
        one = worker(slots=2)
        ranks = {"worker-0.0.0": 4, "worker-0.1.0": 1, "other.0.0": 0}

        def state(ranks: dict[str, int]) -> tuple[WorkerState, datetime, tuple[int, ...]]:
            clock.tick(1)
            [found] = record.status([one], ranks, 1).workers
            return found.state, found.since, found.ranks

        assert state({}) == (WorkerState.STARTING, NOON + timedelta(seconds=1), ())
        one.ready = True
        assert state({}) == (WorkerState.READY, NOON + timedelta(seconds=2), ())
        assert state(ranks) == (WorkerState.TRAINING, NOON + timedelta(seconds=3), (1, 4))
        assert state(ranks) == (WorkerState.TRAINING, NOON + timedelta(seconds=3), (1, 4))
        one.deadline = NOON
        assert state(ranks) == (WorkerState.LEAVING, NOON + timedelta(seconds=5), (1, 4))

    def test_that_are_gone_are_remembered_with_their_seconds(self, record: RunRecord, clock: Clock) -> None:
        one, two = worker("worker-0"), worker("worker-1")
        one.ranks = {"worker-0.0.0~0": 8, "worker-0.0.1~0": None}
        clock.tick(10)
        record.gone(one, WorkerState.LOST)
        clock.tick(5)
        status = record.status([two], {}, 2)
        lost, present = status.workers
        assert (lost.name, lost.state, lost.seconds, lost.pids) == ("worker-0", WorkerState.LOST, 10.0, (7, 8))
        assert (present.name, present.seconds) == ("worker-1", 15.0)
        assert status.worker_seconds == {"worker-0": 10.0, "worker-1": 15.0}


MANY, LONG = 1500, "ü" * 5000
CONFIG_MAP = 1024 * 1024
"""Bytes that the values of a Kubernetes ConfigMap may have together."""


def test_stays_bounded_and_can_be_written(record: RunRecord, clock: Clock) -> None:
    pods = [f"{'run' * 17}-worker-{number:05d}.r12" for number in range(MANY)]
    for pod in pods:
        clock.tick(1)
        record.world(pods)  # its event names every rank of the world
        record.rank_said(CheckpointSkipped("file:///there", LONG), pod)
        record.rank_said(Metrics({f"{pod} {LONG}": -0.12345678901234567e-30}, 10**9 + int(clock.now.timestamp())), pod)
        record.status([], {}, int(clock.now.timestamp()))  # another size is asked for
        gone = worker(pod)
        gone.since = clock.now - timedelta(seconds=1)
        record.gone(gone, WorkerState.LEFT)
    names = list(record.status([], {}, 1).metrics)
    for step in range(1000):  # which leaves as many points as there may be
        clock.tick(1)
        record.rank_said(Progress(2 * 10**9 + step), "")
        record.rank_said(Metrics(dict.fromkeys(names, -0.12345678901234567e-30)), "")
    record.stand(Phase.RUNNING, LONG)
    present = [worker(f"present-{pod}") for pod in pods[:1000]]
    for each in present:
        each.machine, each.cpu_percent, each.memory_bytes = Machine("on-demand", "p4d.24xlarge"), 799.9, 2**40
    status = record.status(present, {}, 1)
    assert (len(status.events), len(status.history), len(status.metrics)) == (MAX_EVENTS, MAX_HISTORY, MAX_METRICS)
    assert len(status.workers) == MAX_PAST_WORKERS + len(present)
    assert len(status.reason) == MAX_REASON
    assert len(status.asked) == MAX_SIZES_ASKED
    assert status.history[-1].generation == MANY
    assert list(status.metrics)[-1].startswith(pods[-1])
    points = [len(series.steps) for series in status.series.values()]
    assert MAX_ALL_POINTS / 3 < sum(points) <= MAX_ALL_POINTS
    assert MAX_POINTS / 2 < len(status.throughput.steps) <= MAX_POINTS
    assert len(to_json(status)) < CONFIG_MAP
    assert from_json(Status, to_json(status)) == status
    past = {name: seconds for name, seconds in status.worker_seconds.items() if not name.startswith("present")}
    assert len(past) == MAX_WORKER_SECONDS
    assert past[EARLIER_WORKERS] == MANY - MAX_WORKER_SECONDS + 1
    assert sum(past.values()) == MANY


class TestExitCode:
    def test_is_of_the_first_to_fail_after_the_last_world(self, record: RunRecord) -> None:
        record.world(["worker-0.0.0", "worker-1.0.0"])
        record.rank_failed("worker-1.0.0", 3, "worker-1")
        record.world(["worker-0.0.0"])
        record.rank_failed("worker-0.0.0", 99, "worker-0")
        record.rank_failed("worker-0.0.0", 1, "worker-0")
        assert record.status([], {}, 1).exit_code is None
        record.finish(Phase.FAILED, "the ranks failed", FailureKind.RANK_FAILED)
        assert record.status([], {}, 1).exit_code == 99
        assert record.status([], {}, 1).rank_failures == 3

    @pytest.mark.parametrize("kind", [FailureKind.CANCELLED, FailureKind.RANK_FAILED])
    def test_is_none_where_no_rank_failed_or_that_is_not_why(self, record: RunRecord, kind: FailureKind) -> None:
        if kind is FailureKind.CANCELLED:
            record.rank_failed("worker-0.0.0", 3, "worker-0")
        record.finish(Phase.FAILED, "it is over", kind)
        assert record.status([], {}, 1).exit_code is None


class TestAfterAnotherLauncher:
    @pytest.fixture
    def before(self, record: RunRecord, clock: Clock) -> Status:
        """It had a world of two at step 7, a checkpoint of step 5, one worker lost and one training."""
        record.world(["worker-0.0.0", "worker-1.0.0"])
        record.rank_said(CheckpointWritten("f/5", 5, NOON, False, 0.5), "worker-0")
        record.rank_said(Progress(6), "worker-0")
        clock.tick(1)
        record.rank_said(Progress(7), "worker-0")
        record.rank_said(Metrics({"loss": 2.0}), "worker-0")
        record.stand(Phase.RUNNING, "2 ranks train")
        record.rank_failures, record.forced_resets = 3, 2
        clock.tick(9)
        record.gone(worker("worker-1"), WorkerState.LOST)
        here = worker("worker-0")
        here.ready = True
        return from_json(Status, to_json(record.status([here], {"worker-0.0.0": 0}, 2)))

    @pytest.fixture
    def after(self, before: Status, clock: Clock) -> RunRecord:
        clock.tick(60)
        return RunRecord(RunSpec("run", "uid", ("true",)), clock, before)

    def test_says_so_and_goes_on(self, after: RunRecord, before: Status) -> None:
        status = after.status([], {}, 2)
        assert status.events[:-1] == before.events
        assert (status.events[-1].kind, status.events[-1].message) == (
            *(EventKind.RESTARTED, "a new launcher has taken over"),
        )
        for name in (
            *("started", "generation", "step", "checkpoint", "metrics", "series", "throughput", "asked"),
            *("worker_seconds", "rank_failures", "forced_resets"),
        ):
            assert getattr(status, name) == getattr(before, name), name
        assert after.trained
        assert (status.rank_failures, status.forced_resets) == (3, 2)

    def test_no_world_trains_until_the_next_one(self, after: RunRecord, before: Status, clock: Clock) -> None:
        after.no_world()
        gap = World(clock.now, 0, 1, 7)
        assert after.status([], {}, 2).history == (*before.history, gap)
        clock.tick(5)
        after.world(["worker-0.r1.0.0"])
        assert after.status([], {}, 2).history == (*before.history, gap, World(clock.now, 1, 2, 7))
        assert kinds(after.status([], {}, 2))[-1] is EventKind.SCALED

    def test_its_wait_is_a_suspension(self, after: RunRecord) -> None:
        after.stand(Phase.SUSPENDED, "0 of 2 ranks can start")
        assert kinds(after.status([], {}, 2))[-1] is EventKind.SUSPENDED

    def test_its_workers_are_past(self, after: RunRecord, clock: Clock) -> None:
        lost, here = after.status([], {}, 2).workers
        assert (lost.name, lost.state, lost.since) == ("worker-1", WorkerState.LOST, NOON + timedelta(seconds=10))
        assert (here.name, here.state, here.since, here.ranks) == ("worker-0", WorkerState.LOST, clock.now, ())
        assert here.seconds == 10.0


class TestOutput:
    def test_each_line_says_when_who_and_where(self) -> None:
        stream = io.StringIO()
        log = OutputLog(stream)
        log.write(NOON, "worker-0", 3, "stdout", ["a", "", "b"])
        log.write(NOON, "worker-1", None, "stderr", ["é"])
        assert stream.getvalue().splitlines() == [
            "2026-01-02T12:00:00.000Z worker-0 [3]<stdout>: a",
            "2026-01-02T12:00:00.000Z worker-0 [3]<stdout>: ",
            "2026-01-02T12:00:00.000Z worker-0 [3]<stdout>: b",
            "2026-01-02T12:00:00.000Z worker-1 [?]<stderr>: é",
        ]

    def test_keeps_the_last_words_on_stderr(self) -> None:
        log = OutputLog(io.StringIO())
        assert log.last_error() == ""
        log.write(NOON, "worker-0", 0, "stdout", ["all is well"])
        log.write(NOON, "worker-0", 0, "stderr", [f"line {number}" for number in range(9)])
        log.write(NOON, "worker-0", 0, "stderr", ["", "  ", "x" * 1000])
        assert log.last_error() == " | ".join([*(f"line {number}" for number in range(5, 9)), "x" * LAST_LINE_LENGTH])
