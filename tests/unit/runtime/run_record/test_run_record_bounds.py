"""What a record keeps of a long run, of machines' time, and of what ranks print: bounded, and written as it is read."""

from __future__ import annotations

import io
from datetime import timedelta

from elastic_runtime.documents import from_json, to_json
from elastic_runtime.launcher.platform import Machine
from elastic_runtime.launcher.record.output import LAST_LINE_LENGTH, OutputLog
from elastic_runtime.launcher.record.run_record import RunRecord
from elastic_runtime.launcher.record.series import MAX_ALL_POINTS, MAX_POINTS
from elastic_runtime.protocol.rank_link import (
    CheckpointSkipped,
    Metrics,
    OutputsSaved,
    Progress,
)
from elastic_runtime.protocol.wire import Heartbeat
from elastic_runtime.run.spec import CheckpointSpec, RunSpec
from elastic_runtime.run.status import (
    EARLIER_WORKERS,
    MAX_EVENTS,
    MAX_HISTORY,
    MAX_MACHINE_NAME,
    MAX_METRICS,
    MAX_PAST_WORKERS,
    MAX_REASON,
    MAX_SIZES_ASKED,
    MAX_USAGE,
    MAX_WORKER_SECONDS,
    Outputs,
    Phase,
    Status,
    Usage,
    WorkerState,
)
from tests.unit.runtime.run_record.bench import NOON, Clock, worker


class TestUsage:
    def test_is_by_kind_of_machine_with_idle_seconds_apart(self, record: RunRecord, clock: Clock) -> None:
        spot, other, unknown = worker("worker-0"), worker("worker-1"), worker("worker-2")
        spot.machine, other.machine = Machine("spot", "g4dn.xlarge"), Machine("on-demand", "g4dn.xlarge")
        workers, ranks = [spot, other, unknown], {"worker-0.0.0": 0, "worker-1.0.0": 1}
        clock.tick(10)  # the agents are here, and nobody trains
        record.status(workers, {}, 3)
        record.world(list(ranks))
        record.status(workers, ranks, 3)
        clock.tick(30)  # two train
        record.status(workers, ranks, 3)
        record.gone(spot, WorkerState.LOST)
        record.no_world()  # the ranks of those that are left are still counted, but train nothing
        record.status([other, unknown], ranks, 3)
        clock.tick(5)
        assert record.status([other, unknown], ranks, 3).usage == (
            Usage("spot", "g4dn.xlarge", 40.0, 10.0),
            Usage("on-demand", "g4dn.xlarge", 45.0, 15.0),
            Usage(None, None, 45.0, 45.0),
        )

    def test_of_many_kinds_is_bounded_and_loses_no_second(self, record: RunRecord, clock: Clock) -> None:
        workers = [worker(f"worker-{number}") for number in range(300)]
        for number, each in enumerate(workers):
            each.machine = Machine("spot", f"kind-{number} {chr(27)}" + "x" * 5000)
        clock.tick(1)
        for each in workers[:200]:
            record.gone(each, WorkerState.LEFT)
        usage = record.status(workers[200:], {}, 1).usage
        assert len(usage) == MAX_USAGE
        assert sum(each.seconds for each in usage) == 300.0
        assert all(len(each.instance_type or "") <= MAX_MACHINE_NAME for each in usage)
        assert chr(27) not in str([each.instance_type for each in usage])

    def test_never_has_more_idle_seconds_than_seconds(self, record: RunRecord, clock: Clock) -> None:
        one = worker()
        for seconds in (100, -90, 100, -90):
            clock.tick(seconds)
            record.status([one], {}, 1)
        assert record.status([one], {}, 1).usage == (Usage(None, None, 20.0, 20.0),)

    def test_is_continued_by_the_next_launcher(self, record: RunRecord, clock: Clock) -> None:
        clock.tick(10)
        before = record.status([worker()], {}, 1)
        later = RunRecord(RunSpec("run", "uid", ("true",)), clock, before)
        again = worker("worker-0.r1")
        again.since = clock.now
        clock.tick(5)
        assert later.status([again], {}, 1).usage == (Usage(None, None, 15.0, 15.0),)


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
        each.machine, each.beat = Machine("on-demand", "p4d.24xlarge"), Heartbeat(799.9, 2**40)
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

    def test_can_leave_out_what_is_said_of_lost_peers(self) -> None:
        log = OutputLog(io.StringIO())
        lines = ["no data", "Horovod background loop uncaught exception: Read error: Connection reset by peer"]
        log.write(NOON, "worker-0", 0, "stderr", lines)
        assert log.last_error() == " | ".join(lines)
        assert log.last_error(of_peers=False) == "no data"


def test_outputs_are_named_where_the_run_keeps_them_whoever_tells(clock: Clock) -> None:
    spec = RunSpec("run", "uid", ("true",), checkpoint=CheckpointSpec("s3://b/run/", fence=7))
    record = RunRecord(spec, clock)
    record.rank_said(OutputsSaved(2, 30), "worker-0")
    status = record.status([], {}, 1)
    assert status.outputs == Outputs("s3://b/run/outputs-7", 2, 30)
    after = RunRecord(spec, clock, from_json(Status, to_json(status)))
    assert after.status([], {}, 1).outputs == status.outputs
    record.rank_said(OutputsSaved(0, 0), "worker-0")
    assert record.status([], {}, 1).outputs is None
