"""What has happened, and the status document made from it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from elastic_runtime.errors import FailureKind
from elastic_runtime.launcher.record.run_record import RunRecord
from elastic_runtime.protocol.rank_link import (
    CheckpointFailed,
    CheckpointSkipped,
    CheckpointWritten,
    Metrics,
    Progress,
    Resumed,
)
from elastic_runtime.protocol.wire import Hello
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import Checkpoint, EventKind, Phase, Series, WorkerState, World
from tests.unit.runtime.run_record.bench import NOON, Clock, kinds, worker


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

    def test_a_shared_local_rank_is_told_once_also_by_the_next_launcher(self, record: RunRecord) -> None:
        record.local_rank_read()
        status = record.status([], {}, 2)
        following = RunRecord(RunSpec("run", "uid", ("true",)), lambda: NOON, status)
        following.local_rank_read()
        told = [event.kind for event in following.status([], {}, 2).events]
        assert told.count(EventKind.WARNING) == 1

    def test_a_name_that_leads_elsewhere_is_warned_of_once(self, record: RunRecord) -> None:
        for name in ("worker-0", "worker-1"):
            record.named_elsewhere(name, Hello(name, "node-7", 1, 1, "eth0", "10.0.0.7"), "127.0.1.1")
        [told] = record.status([], {}, 2).events
        assert told.kind is EventKind.WARNING
        assert told.message.startswith(
            "worker-0 is on node-7, whose name resolves to 127.0.1.1, not to 10.0.0.7, the address of its ranks. "
            "Horovod connects to that address, too"
        )

    @pytest.mark.parametrize(
        ("engine", "remedy"),
        [("torchrun", "init_process_group()"), ("torch", "@elastic.run"), ("horovod", "hvd.init()"), ("own", "engine")],
    )
    def test_ranks_that_train_in_no_world_are_told_of_once_with_what_helps(self, engine: str, remedy: str) -> None:
        record = RunRecord(RunSpec("run", "uid", ("true",), engine=engine), lambda: NOON)
        for _ in range(2):
            record.trains_unjoined()
        [told] = record.status([], {}, 2).events
        assert told.kind is EventKind.WARNING
        assert remedy in told.message
        assert not told.message.endswith("…"), "it fits"

    def test_starts_are_counted_on_by_the_next_launcher(self, record: RunRecord) -> None:
        assert [record.starts(2) for _ in range(3)] == [0, 1, 2]
        status = record.status([], {}, 2)
        later = RunRecord(RunSpec("run", "uid", ("true",)), lambda: NOON, replace(status, generation=5))
        assert later.starts(2) == 3

    def test_says_how_long_a_world_took_to_its_first_step(
        self, record: RunRecord, clock: Clock, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO")
        for step in (Progress(7), Metrics({"loss": 0.5}, step=8)):
            record.world(["a", "b"])
            clock.tick(1.5)
            record.rank_said(step, "worker-0")
            record.rank_said(step, "worker-0")
        told = [text for text in caplog.messages if text.startswith("first step")]
        assert told == ["first step 1.5 s after the world of 2 ranks was complete"] * 2

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

    def test_tell_of_a_checkpoint_once_though_another_rank_finds_it(self, record: RunRecord) -> None:
        record.rank_said(CheckpointWritten("f/3", 3, NOON, False, 0.5), "worker-0")
        record.rank_said(CheckpointWritten("f/3", 3, NOON, True, 0.0), "worker-1")
        [event] = record.status([], {}, 1).events
        assert (event.kind, event.worker) == (EventKind.CHECKPOINT, "worker-0")

    @pytest.mark.parametrize(("seconds", "step"), [(-1, 5), (1, 3)], ids=["late", "after going back"])
    def test_an_older_checkpoint_that_is_told_late_replaces_no_newer_one(
        self, record: RunRecord, seconds: int, step: int
    ) -> None:
        record.rank_said(CheckpointWritten("f/5", 5, NOON, False, 0.5), "worker-1")
        record.rank_said(CheckpointWritten("f/3", 3, NOON + timedelta(seconds=seconds), False, 0.5), "worker-0")
        assert record.checkpoint is not None
        assert record.checkpoint.step == step


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
