"""What a record says of the end, and of what another launcher has told before."""

from __future__ import annotations

from datetime import timedelta

import pytest

from elastic_runtime.documents import from_json, to_json
from elastic_runtime.errors import FailureKind
from elastic_runtime.launcher.record.run_record import RunRecord
from elastic_runtime.protocol.rank_link import (
    CheckpointWritten,
    Metrics,
    Progress,
    Returned,
)
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import EventKind, Phase, Status, WorkerState, World
from tests.unit.runtime.run_record.bench import NOON, Clock, kinds, worker


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
        record.rank_said(Returned("7"), "worker-0")
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
            *("worker_seconds", "usage", "rank_failures", "forced_resets", "returned"),
        ):
            assert getattr(status, name) == getattr(before, name), name
        assert (after.trained, status.returned) == (True, "7")
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
