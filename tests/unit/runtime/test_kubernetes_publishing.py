"""When the status is written, and how surely; on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from elastic_runtime.errors import ClusterUnavailable, ElasticError, MissingRight, OwnershipLost, RunNotFound
from elastic_runtime.launcher.kubernetes.publishing import Publisher, due
from elastic_runtime.run.status import (
    Event,
    EventKind,
    Phase,
    Series,
    Status,
    Usage,
    WorkerState,
    WorkerStatus,
    World,
)
from elastic_runtime.run.status_figures import GpuFigures, Hardware
from elastic_runtime.run.status_progress import Pace, Progress
from tests.unit.provider.virtual_time import run_virtually
from tests.unit.runtime.kubernetes_bench import NOON, spec, status

RUN = spec()
WORKER = WorkerStatus("w", "node", WorkerState.TRAINING, NOON, 1, (0,), (7,), seconds=1.0, cpu_percent=5.0)
BASE = status(
    RUN, workers=(WORKER,), worker_seconds={"w": 1.0}, usage=(Usage(seconds=1.0),), step=3, metrics={"loss": 1.0}
)
LATER = replace(BASE, updated=NOON + timedelta(seconds=1))

HEADLINES: dict[str, dict[str, Any]] = {
    "reason": {"reason": "3 ranks train"},
    "world": {"world_size": 3, "history": (World(NOON, 3, 1),)},
    "event": {"events": (Event(NOON, EventKind.SCALED, "3"),)},
    "size": {"target_size": 4},
    "worker's state": {"workers": (replace(WORKER, state=WorkerState.LEAVING),)},
    "worker": {"workers": ()},
}
FIGURES: dict[str, dict[str, Any]] = {
    "step": {"step": 4},
    "progress": {"progress": Progress(9, 44.0, 5.0, 4.0, 6.0), "paces": (Pace(2, 4, 4.0),)},
    "metrics": {"metrics": {"loss": 0.5}, "series": {"loss": Series(1, (4,), (9.0,), (0.5,))}},
    "throughput": {"throughput": Series(1, (4,), (9.0,), (2.5,))},
    "samples": {"sample_throughput": Series(1, (4,), (9.0,), (80.0,))},
    "hardware": {"hardware": {"w": Hardware((9.0,), {"cpu_percent": (50.0,)})}},
    "lost": {"lost_seconds": {"starting": 1.0}},
    "network": {"workers": (replace(WORKER, receive_bytes_per_second=1.0, transmit_bytes_per_second=2.0),)},
    "gpus": {"workers": (replace(WORKER, gpus=(GpuFigures(0, "A", 9.0),)),)},
    "seconds": {
        "worker_seconds": {"w": 2.0},
        "usage": (Usage(seconds=2.0),),
        "workers": (replace(WORKER, seconds=2.0),),
    },
    "usage": {"workers": (replace(WORKER, cpu_percent=9.0, memory_bytes=5),)},
}


class TestDue:
    def test_at_once_at_first(self) -> None:
        assert due(None, BASE, 0.0) == 0.0

    def test_never_while_only_time_passes(self) -> None:
        assert due(BASE, BASE, 1e6) is None
        assert due(BASE, LATER, 1e6) is None

    @pytest.mark.parametrize("phase", [each for each in Phase if each is not BASE.phase])
    def test_at_once_for_another_phase(self, phase: Phase) -> None:
        assert due(BASE, replace(LATER, phase=phase), 0.0) == 0.0

    @pytest.mark.parametrize("change", HEADLINES.values(), ids=list(HEADLINES))
    def test_within_a_second_for_what_is_waited_for(self, change: dict[str, Any]) -> None:
        assert due(BASE, replace(LATER, **change), 0.2) == pytest.approx(0.8)
        assert due(BASE, replace(LATER, **change), 1.5) == 0.0

    @pytest.mark.parametrize("change", FIGURES.values(), ids=list(FIGURES))
    def test_within_five_for_figures(self, change: dict[str, Any]) -> None:
        assert due(BASE, replace(LATER, **change), 0.2) == pytest.approx(4.8)
        assert due(BASE, replace(LATER, **change), 7.0) == 0.0

    @pytest.mark.parametrize(("minutes", "interval"), [(1, 5.0), (10, 30.0), (20, 60.0), (600, 60.0)])
    def test_figures_wait_the_longer_the_run_has_trained(self, minutes: int, interval: float) -> None:
        latest = replace(LATER, step=4, started=LATER.updated - timedelta(minutes=minutes))
        assert due(replace(latest, step=3), latest, 1.0) == pytest.approx(interval - 1.0)


class Server:
    """Takes statuses, or answers with the errors that it is given first."""

    def __init__(self, *errors: ElasticError) -> None:
        self.errors = list(errors)
        self.attempts: list[float] = []
        self.written: list[tuple[float, Status]] = []
        self.ends: list[ElasticError] = []

    async def write(self, latest: Status) -> None:
        now = asyncio.get_running_loop().time()
        self.attempts.append(now)
        if self.errors:
            raise self.errors.pop(0)
        self.written.append((now, latest))


def publishing(server: Server, test: Callable[[Publisher], Awaitable[None]]) -> None:
    async def main() -> None:
        publisher = Publisher(server.write, server.ends.append)
        running = asyncio.create_task(publisher.run())
        try:
            await test(publisher)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    run_virtually(main())


class TestPublisher:
    def test_writes_a_busy_run_every_five_seconds_and_its_phases_at_once(self) -> None:
        server = Server()

        async def test(publisher: Publisher) -> None:
            for tenth in range(200):
                phase = Phase.RUNNING if tenth < 123 else Phase.SUSPENDED
                publisher.offer(replace(BASE, step=tenth, phase=phase))
                await asyncio.sleep(0.1)

        publishing(server, test)
        assert [round(moment, 1) for moment, _ in server.written] == [0.0, 5.0, 10.0, 12.3, 17.3]
        assert server.written[3][1].phase is Phase.SUSPENDED

    def test_writes_events_once_a_second(self) -> None:
        server = Server()

        async def test(publisher: Publisher) -> None:
            for tenth in range(50):
                publisher.offer(replace(BASE, reason=f"{tenth}"))
                await asyncio.sleep(0.1)

        publishing(server, test)
        assert [round(moment, 1) for moment, _ in server.written] == [0.0, 1.0, 2.0, 3.0, 4.0]

    def test_writes_nothing_of_a_run_that_waits(self) -> None:
        server = Server()

        async def test(publisher: Publisher) -> None:
            for second in range(60):
                waiting = replace(BASE, phase=Phase.STARTING, workers=(), worker_seconds={})
                publisher.offer(replace(waiting, updated=NOON + timedelta(seconds=second)))
                await asyncio.sleep(1)

        publishing(server, test)
        assert [moment for moment, _ in server.written] == [0.0]

    def test_goes_on_with_the_newest_when_the_server_is_back(self) -> None:
        server = Server(*[ClusterUnavailable("away")] * 6, MissingRight("right after its start"))

        async def test(publisher: Publisher) -> None:
            for second in range(60):
                publisher.offer(replace(BASE, step=second))
                await asyncio.sleep(1)

        publishing(server, test)
        assert server.attempts[:8] == [0.0, 0.5, 1.5, 3.5, 7.5, 15.5, 30.5, 45.5]
        assert server.written[0][1].step == 45

    @pytest.mark.parametrize("error", [OwnershipLost("another"), RunNotFound("gone")])
    def test_says_once_that_it_cannot_write_any_more(self, error: ElasticError) -> None:
        server = Server(error)

        async def test(publisher: Publisher) -> None:
            for step in range(20):
                publisher.offer(replace(BASE, step=step))
                await asyncio.sleep(1)
            assert not publisher.unwritten()

        publishing(server, test)
        assert server.attempts == [0.0]
        assert server.ends == [error]


class TestFlush:
    def test_has_it_written_when_it_returns_however_long_that_takes(self) -> None:
        server = Server(*[ClusterUnavailable("away")] * 20)

        async def test(publisher: Publisher) -> None:
            publisher.offer(replace(BASE, phase=Phase.SUCCEEDED))
            await publisher.flush()
            assert [each.phase for _, each in server.written][-1] is Phase.SUCCEEDED
            assert asyncio.get_running_loop().time() > 200

        publishing(server, test)

    def test_writes_what_was_written_before_for_it_tells_who_has_the_run(self) -> None:
        server = Server()

        async def test(publisher: Publisher) -> None:
            publisher.offer(BASE)
            await asyncio.sleep(1)
            server.errors = [OwnershipLost("another")]
            with pytest.raises(OwnershipLost):
                await publisher.flush()
            with pytest.raises(OwnershipLost):
                await publisher.flush()

        publishing(server, test)
        assert len(server.attempts) == 2

    def test_of_a_run_that_is_gone_is_done(self) -> None:
        server = Server(RunNotFound("gone"))

        async def test(publisher: Publisher) -> None:
            publisher.offer(BASE)
            await publisher.flush()
            await publisher.flush()

        publishing(server, test)
        assert len(server.attempts) == 1

    def test_of_nothing_is_done(self) -> None:
        publishing(Server(), lambda publisher: publisher.flush())
