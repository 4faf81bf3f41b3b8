"""The launcher's loop and its place: what it does, in which order, when it ends, makes way, or goes on for another."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from elastic_runtime import certificates
from elastic_runtime.certificates import agent_context
from elastic_runtime.clock import utc_now
from elastic_runtime.engines.base import SessionFact, SessionState
from elastic_runtime.errors import OwnershipLost
from elastic_runtime.framing import decode_line
from elastic_runtime.launcher import loop
from elastic_runtime.launcher.decision.facts import LeadershipState, Refusal
from elastic_runtime.launcher.loop import Launcher
from elastic_runtime.launcher.platform import Machine
from elastic_runtime.launcher.record.output import OutputLog
from elastic_runtime.rank_link import CheckpointWritten, encode_rank_message
from elastic_runtime.spec import CheckpointSpec, RunSpec, Timing, WorkersSpec
from elastic_runtime.status import Checkpoint, EventKind, FailureKind, Phase, Status, World
from elastic_runtime.wire import (
    CommitDeadline,
    Heartbeat,
    Hello,
    RankExited,
    RankSaid,
    RankStarted,
    Ready,
    Release,
    StartRank,
    Welcome,
    decode,
    encode,
)
from tests.unit.runtime.agent_bench import SOON, handshakes

RUN = RunSpec("run", "uid", ("true",), warm=False, timing=Timing(tick=0.02, lease=60.0))
THEN = datetime(2026, 1, 2, 12, tzinfo=UTC)
BEFORE = Status(
    run="run",
    uid="uid",
    phase=Phase.RUNNING,
    reason="1 ranks train",
    updated=THEN,
    started=THEN,
    world_size=1,
    generation=4,
    step=70,
    history=(World(THEN, 1, 4, 60),),
    worker_seconds={"w": 9.0},
)


@dataclass
class Place:
    """Platform that note what is asked of them, and answer as told."""

    tenure_: LeadershipState = LeadershipState.HELD
    wanted_: int = 1
    cancelled: str | None = None
    lost: bool = False
    deadlines: dict[str, datetime] = field(default_factory=dict)
    did: list[str] = field(default_factory=list)
    published: list[Status] = field(default_factory=list)
    port: int = 0
    on_change: Callable[[], None] = lambda: None
    heard: asyncio.Event = field(default_factory=asyncio.Event)

    def open(self, port: int, on_change: Callable[[], None]) -> None:
        self.port, self.on_change = port, on_change

    def wanted(self) -> int:
        return self.wanted_

    def cancel(self) -> str | None:
        return self.cancelled

    def lease_age(self) -> float | None:
        return None

    def watched(self) -> bool:
        return True

    def leadership(self) -> LeadershipState:
        return self.tenure_

    def refusal(self) -> Refusal | None:
        return None

    def deadline(self, worker: str, /) -> datetime | None:
        return self.deadlines.get(worker)

    def machine(self, worker: str, /) -> Machine | None:
        return Machine("spot", "large")

    def replace(self, worker: str, /) -> None:
        self.did.append(f"replace {worker}")

    def publish(self, status: Status) -> None:
        self.published.append(status)
        self.did.append("final" if status.phase.final else "status")
        self.heard.set()

    async def end_workers(self) -> None:
        self.did.append("end workers")

    async def flush(self) -> None:
        self.did.append("flush")
        if self.lost:
            raise OwnershipLost("another launcher has taken over")

    async def close(self) -> None:
        self.did.append("close")

    async def until(self, wanted: Callable[[Status], bool]) -> Status:
        async with asyncio.timeout(SOON):
            while not (self.published and wanted(self.published[-1])):
                self.heard.clear()
                await self.heard.wait()
        return self.published[-1]

    def last(self, count: int) -> list[str]:
        return self.did[-count:]


class Worker:
    """An agent's end of a connection, without an agent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def dial(cls, tls: Path, port: int) -> Worker:
        context = agent_context(tls)
        made = cls(*await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="launcher"))
        for message in (Hello("w", "n1", 7, 1, "lo"), Heartbeat(1.0, 1)):
            made.writer.write(encode(message))
        return made

    async def hear(self) -> object:
        line = await self.reader.readline()
        return decode(decode_line(line)) if line else None

    async def hear_last_commit(self) -> CommitDeadline:
        async with asyncio.timeout(SOON):
            while not isinstance(message := await self.hear(), CommitDeadline):
                assert message is not None
        return message


@pytest.fixture(autouse=True)
def published_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "PUBLISH_INTERVAL", 0.01)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "tls"
    certificates.create(folder)
    return folder


def launched(
    tls: Path,
    test: Callable[[Place, Worker, asyncio.Task[Status]], object],
    previous: Status | None = None,
    spec: RunSpec = RUN,
) -> Place:
    """Run the test with a launcher whose one worker has come; both are gone afterwards."""

    async def main() -> Place:
        place = Place()
        launcher = Launcher(spec, place, OutputLog(io.StringIO()), tls, "127.0.0.1", previous=previous)
        running = asyncio.create_task(launcher.run())
        await place.until(lambda _: True)
        worker = await Worker.dial(tls, place.port)
        assert isinstance(await worker.hear(), Welcome)
        await place.until(lambda status: any(each.node == "n1" for each in status.workers))
        try:
            await test(place, worker, running)  # type: ignore[misc]  # tests are coroutines
        finally:
            worker.writer.transport.abort()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await handshakes()
        return place

    return asyncio.run(main())


def test_at_the_end_it_makes_sure_of_the_run_before_the_workers_go_and_tells_of_the_end_after(tls: Path) -> None:
    async def test(place: Place, worker: Worker, running: asyncio.Task[Status]) -> None:
        place.cancelled = "enough"
        place.did.clear()
        status = await running
        assert (status.phase, status.failure) == (Phase.FAILED, FailureKind.CANCELLED)
        assert isinstance(await worker.hear(), Release)
        order = place.did[place.did.index("flush") - 1 :]
        assert order == ["status", "flush", "end workers", "final", "flush", "close"]
        assert place.published[-1] == status

    launched(tls, test)


def test_one_that_has_lost_the_run_unawares_leaves_the_workers_alone_at_the_end(tls: Path) -> None:
    async def test(place: Place, worker: Worker, running: asyncio.Task[Status]) -> None:
        place.lost, place.cancelled = True, "enough"
        with pytest.raises(OwnershipLost):
            await running
        assert await worker.hear() is None  # It is hung up on, and will dial the other launcher.
        assert place.last(3) == ["status", "flush", "close"]

    launched(tls, test)


@pytest.mark.parametrize("leadership", [LeadershipState.ENDING, LeadershipState.LOST])
def test_one_that_makes_way_hangs_up_and_leaves_the_workers_to_the_next(tls: Path, leadership: LeadershipState) -> None:
    async def test(place: Place, worker: Worker, running: asyncio.Task[Status]) -> None:
        place.tenure_ = leadership
        place.on_change()
        status = await running
        assert not status.phase.final
        assert await worker.hear() is None
        assert not {"end workers", "final", "flush"} & set(place.did)
        assert place.last(1) == ["close"]

    launched(tls, test)


def test_the_next_one_goes_on(tls: Path) -> None:
    async def test(place: Place, worker: Worker, running: asyncio.Task[Status]) -> None:
        status = place.published[-1]
        assert (status.phase, status.started, status.generation, status.step) == (Phase.SUSPENDED, THEN, 4, 70)
        assert [(world.size, world.generation) for world in status.history] == [(1, 4), (0, 4)]
        kinds = [event.kind for event in status.events]
        assert kinds[:2] == [EventKind.RESTARTED, EventKind.SUSPENDED]
        [name] = [each.name for each in status.workers if each.node == "n1"]
        assert name == "w.r1"

    launched(tls, test, BEFORE)


def test_it_knows_of_its_workers_what_their_place_knows(tls: Path) -> None:
    async def test(place: Place, worker: Worker, running: asyncio.Task[Status]) -> None:
        worker.writer.write(encode(Ready(warm=False)))
        [known] = place.published[-1].workers
        assert (known.capacity_type, known.instance_type) == ("spot", "large")
        place.deadlines["w"] = utc_now() + timedelta(seconds=30)
        place.on_change()
        while not isinstance(message := await worker.hear(), Release):
            assert message is not None
        await place.until(lambda status: any(event.kind is EventKind.NOTICE for event in status.events))
        notices = [event for event in place.published[-1].events if event.kind is EventKind.NOTICE]
        assert [notice.worker for notice in notices] == ["w"]
        assert notices[0].message.endswith("(the cluster)")
        assert "replace w" in place.did

    launched(tls, test)


def test_it_begins_with_fewer_than_are_wanted_when_the_time_to_gather_is_over(tls: Path) -> None:
    async def test(place: Place, worker: Worker, running: asyncio.Task[Status]) -> None:
        place.wanted_ = 2
        worker.writer.write(encode(Ready(warm=False)))
        async with asyncio.timeout(SOON):
            while not isinstance(message := await worker.hear(), StartRank):
                assert message is not None
        assert place.published[-1].target_size == 2

    timing = replace(RUN.timing, gather=0.1)
    launched(tls, test, spec=replace(RUN, workers=WorkersSpec(1, 2, 2), timing=timing))


@pytest.mark.parametrize("noticed", [True, False])
def test_another_worker_is_asked_for_when_one_is_lost_that_had_a_notice(tls: Path, noticed: bool) -> None:
    async def test(place: Place, worker: Worker, running: asyncio.Task[Status]) -> None:
        worker.writer.write(encode(RankStarted("w.0.0~0", 8)))  # it is in use, and not sent home
        await place.until(lambda status: any(8 in each.pids for each in status.workers))
        if noticed:
            place.deadlines["w"] = utc_now() + timedelta(seconds=30)
            place.on_change()
            await place.until(lambda status: any(event.kind is EventKind.NOTICE for event in status.events))
        assert "replace w" not in place.did
        worker.writer.transport.abort()
        await place.until(lambda status: any(event.kind is EventKind.LOST for event in status.events))
        assert ("replace w" in place.did) == noticed

    launched(tls, test)


class WaitingSession:
    """Of an engine whose worlds have ended, and whose ranks wait for another."""

    def __init__(self, *_arguments: object) -> None:
        self.rank_of: dict[str, int] = {}

    @property
    def fact(self) -> SessionFact:
        return SessionFact(SessionState.WAITING, tuple(self.rank_of), holders=tuple(self.rank_of))

    def open(self, ranks: tuple[str, ...], _minimum: int) -> None:
        self.rank_of = {"lost.0.0": 0, **{rank_id: rank for rank, rank_id in enumerate(ranks, start=1)}}

    def list_ranks(self, _ranks: tuple[str, ...], _minimum: int) -> None:
        pass

    async def close(self, _grace: float) -> None:
        pass


class TestWhileRanksWait:
    @pytest.fixture(autouse=True)
    def session(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(loop, "find_engine", lambda _name: SimpleNamespace(session=WaitingSession))

    async def begin(self, place: Place, worker: Worker) -> None:
        """The worker's one rank holds the state."""
        worker.writer.write(encode(Ready(warm=False)))
        worker.writer.write(encode(RankStarted("w.0.0~0", 8)))
        await place.until(lambda status: any(8 in each.pids for each in status.workers))

    def test_the_last_of_them_is_told_to_write_and_told_when_it_need_not(self, tls: Path) -> None:
        async def test(place: Place, worker: Worker, running: asyncio.Task[Status]) -> None:
            await self.begin(place, worker)
            deadline = place.deadlines["w"] = utc_now().replace(microsecond=0) + timedelta(seconds=30)
            place.on_change()
            assert await worker.hear_last_commit() == CommitDeadline(deadline, "w.0.0")
            worker.writer.write(encode(RankExited("w.0.0~0", -9)))
            assert await worker.hear_last_commit() == CommitDeadline(None)

        launched(tls, test)

    def test_a_launcher_that_is_taken_has_them_write_before_it_goes(self, tls: Path) -> None:
        async def test(place: Place, worker: Worker, running: asyncio.Task[Status]) -> None:
            await self.begin(place, worker)
            place.tenure_ = LeadershipState.ENDING
            place.on_change()
            assert (await worker.hear_last_commit()).keeper == "w.0.0"
            assert not running.done()
            written = CheckpointWritten("file:///c/1", 20, THEN, handover=True, seconds=1.0)
            worker.writer.write(encode(RankSaid("w.0.0~0", decode_line(encode_rank_message(written)))))
            async with asyncio.timeout(SOON):
                status = await running
            assert status.checkpoint == Checkpoint("file:///c/1", 20, THEN)

        launched(tls, test, spec=replace(RUN, checkpoint=CheckpointSpec("file:///c")))
