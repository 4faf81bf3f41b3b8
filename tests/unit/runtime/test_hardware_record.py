"""Figures of workers over time, in few points."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

from elastic_runtime.launcher.kubernetes.leadership import STATUS_ROOM, fitted
from elastic_runtime.launcher.record.hardware import MAX_ALL_POINTS, MAX_WORKER_POINTS, MAX_WORKERS, HardwareRecord
from elastic_runtime.protocol.wire import Heartbeat
from elastic_runtime.run.status import Event, EventKind, Phase, Status, WorkerState, WorkerStatus
from elastic_runtime.run.status_figures import GpuFigures, Hardware

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
GPUS = (GpuFigures(0, "A", 50.0, 2**30, 2**36), GpuFigures(1, "A", 100.0, 2**30, 2**36), GpuFigures(2, "MIG", None))
BEAT = Heartbeat(123.456, 10**10, 1234567.0, 7654321.0, GPUS)


def at(second: int) -> datetime:
    return NOON + timedelta(seconds=second)


def heard(workers: list[str], seconds: int, record: HardwareRecord | None = None) -> HardwareRecord:
    record = record or HardwareRecord(None)
    for second in range(seconds):
        for worker in workers:
            record.heard(worker, BEAT, at(second))
    return record


def test_a_point_has_means_and_sums_over_the_workers_gpus() -> None:
    told = heard(["w"], 1).told(["w"])["w"]
    assert told.times == (NOON.timestamp(),)
    assert told.columns == {
        "cpu_percent": (123.5,),
        "memory_bytes": (1e10,),
        "receive_bytes_per_second": (1235000.0,),
        "transmit_bytes_per_second": (7654000.0,),
        "gpu_percent": (75.0,),
        "gpu_memory_bytes": (2147000000.0,),
    }


def test_what_is_not_known_has_no_column_and_gaps_are_none() -> None:
    record = HardwareRecord(None)
    record.heard("w", Heartbeat(1.0, 1), at(0))
    assert set(record.told(["w"])["w"].columns) == {"cpu_percent", "memory_bytes"}
    record.heard("w", BEAT, at(1))
    assert record.told(["w"])["w"].columns["gpu_percent"] == (None, 75.0)


def test_covers_the_whole_run_evenly() -> None:
    times = heard(["w"], 5000).told(["w"])["w"].times
    assert MAX_WORKER_POINTS / 2 < len(times) <= MAX_WORKER_POINTS
    assert times[0] == NOON.timestamp()
    assert at(5000).timestamp() - times[-1] <= 128
    assert {after - before for before, after in pairwise(times[:-1])} == {64.0}


def test_sixteen_workers_have_sixty_points_each() -> None:
    workers = [f"w{number}" for number in range(16)]
    told = HardwareRecord(None)
    for chunk in range(10):
        heard(workers, 100 * (chunk + 1), told)
        assert all(len(each.times) <= MAX_ALL_POINTS // 16 for each in told.told(workers).values())
    assert MAX_ALL_POINTS // 16 >= 60
    assert all(len(each.times) >= 60 for each in heard(workers, 75).told(workers).values())


def test_those_that_are_gone_go_first() -> None:
    gone, here = [f"gone{number}" for number in range(40)], [f"here{number}" for number in range(40)]
    told = heard([*gone, *here], 3).told(here)
    assert len(told) == MAX_WORKERS
    assert set(here) < set(told)
    assert set(told) - set(here) == set(gone[-(MAX_WORKERS - 40) :])


def test_is_continued_by_the_next_launcher() -> None:
    before = heard(["w"], 10).told(["w"])
    status = Status("run", "uid", Phase.RUNNING, "", NOON, hardware={**before, "odd": Hardware((1.0,), {})})
    assert HardwareRecord(status).told(["w.r1"])["w"] == before["w"]
    broken = {"w": Hardware((1.0, 2.0), {"cpu_percent": (1.0,)})}
    assert HardwareRecord(Status("run", "uid", Phase.RUNNING, "", NOON, hardware=broken)).told([])["w"] == Hardware()


def test_a_thousand_workers_with_all_their_figures_fit() -> None:
    names = [f"some-training-of-mine-worker-{number:05d}.r1" for number in range(1000)]
    workers = tuple(
        WorkerStatus(name, "ip-10-0-0-1.ec2.internal", WorkerState.TRAINING, NOON, 8, tuple(range(8)), (2**22,) * 9)
        for name in names
    )
    told = heard(names, 120).told(names)
    assert sum(len(each.times) for each in told.values()) <= MAX_ALL_POINTS
    events = (Event(NOON, EventKind.LOST, "a worker was lost", "worker-0"),) * 200
    status = Status("run", "uid", Phase.RUNNING, "", NOON, workers=workers, hardware=told, events=events)
    assert len(fitted(status)) < STATUS_ROOM
    assert '"hardware":{}' not in fitted(status)
    assert '"hardware":{}' in fitted(status, 300_000)
