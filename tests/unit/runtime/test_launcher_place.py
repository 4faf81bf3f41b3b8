"""The launcher's loop and its place: what it does, in which order, when it ends, makes way, or goes on for another."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from elastic_runtime.clock import utc_now
from elastic_runtime.engines.base import SessionCallbacks, SessionFact, SessionState
from elastic_runtime.engines.torch.messages import Connected, Done, ReadyForWorld, Static, Synced, write_rank_word
from elastic_runtime.errors import FailureKind, OwnershipLost
from elastic_runtime.launcher import loop
from elastic_runtime.launcher.decision.facts import LeadershipState
from elastic_runtime.launcher.record.misuse import AGAIN, STATIC
from elastic_runtime.launcher.worker_pool import WorkerPool
from elastic_runtime.net import certificates
from elastic_runtime.net.framing import decode_line
from elastic_runtime.protocol.rank_link import (
    CheckpointWritten,
    CommitDeadline,
    EngineWord,
    Handover,
    encode_rank_message,
)
from elastic_runtime.protocol.wire import (
    AgentMessage,
    RankExited,
    RankSaid,
    RankStarted,
    Ready,
    Release,
    StartRank,
    StopRank,
    encode,
)
from elastic_runtime.run.deadline import DeadlineSpec
from elastic_runtime.run.spec import CheckpointSpec, RestartSpec, WorkersSpec
from elastic_runtime.run.status import Checkpoint, EventKind, Phase, Status, World
from tests.unit.runtime.agent_bench import SOON
from tests.unit.runtime.launcher_bench import RUN, Place, Worker, launched

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


@pytest.fixture(autouse=True)
def published_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "PUBLISH_INTERVAL", 0.01)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "tls"
    certificates.create(folder)
    return folder


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


def test_one_that_makes_way_has_ranks_that_end_with_it_write_their_checkpoint(tls: Path) -> None:
    async def test(place: Place, worker: Worker, running: asyncio.Task[Status]) -> None:
        def says(message: AgentMessage) -> None:
            worker.writer.write(encode(message))

        says(Ready(warm=False))
        async with asyncio.timeout(SOON):
            while not isinstance(start := await worker.hear(), StartRank):
                assert start is not None
            says(RankStarted(start.rank_id, 8))
            begun = EngineWord(write_rank_word(Connected(0)))
            says(RankSaid(start.rank_id, decode_line(encode_rank_message(begun))))
            await place.until(lambda status: status.world_size == 1)
            place.tenure_ = LeadershipState.ENDING
            place.on_change()
            while not isinstance(stop := await worker.hear(), StopRank):
                assert stop is not None, "the launcher has hung up, and the ranks end with that"
            assert stop == StopRank(start.rank_id, 9.0, signal.SIGUSR1)
            assert not running.done()
            says(RankExited(start.rank_id, 0))
            assert not (await running).phase.final

    spec = replace(RUN, engine="torchrun", restart=RestartSpec("SIGUSR1", 9.0), workers=WorkersSpec(1, 1, 1))
    launched(tls, test, spec=spec)


def test_a_script_that_trains_once_more_is_told_of(tls: Path) -> None:
    async def test(place: Place, worker: Worker, running: asyncio.Task[Status]) -> None:
        worker.writer.write(encode(Ready(warm=False)))
        async with asyncio.timeout(SOON):
            while not isinstance(start := await worker.hear(), StartRank):
                assert start is not None
        worker.writer.write(encode(RankStarted(start.rank_id, 8)))
        for word in (ReadyForWorld(), Connected(1), Synced(1), Done(1), Synced(1), Synced(1)):
            said = decode_line(encode_rank_message(EngineWord(write_rank_word(word))))
            worker.writer.write(encode(RankSaid(start.rank_id, said)))
        told = await place.until(lambda status: any(each.kind is EventKind.WARNING for each in status.events))
        assert [each.message for each in told.events if each.kind is EventKind.WARNING] == [AGAIN]

    launched(tls, test, spec=RUN)


def test_a_script_that_cannot_grow_is_told_of_and_more_workers_are_given_back(tls: Path) -> None:
    async def test(place: Place, worker: Worker, running: asyncio.Task[Status]) -> None:
        def says(message: AgentMessage) -> None:
            worker.writer.write(encode(message))

        def warnings(status: Status) -> list[str]:
            return [event.message for event in status.events if event.kind is EventKind.WARNING]

        says(Ready(warm=False))
        async with asyncio.timeout(SOON):
            while not isinstance(start := await worker.hear(), StartRank):
                assert start is not None
        says(RankStarted(start.rank_id, 8))
        for word in (ReadyForWorld(), Connected(1), Static(1)):
            says(RankSaid(start.rank_id, decode_line(encode_rank_message(EngineWord(write_rank_word(word))))))
        status = await place.until(lambda status: bool(warnings(status)))
        assert warnings(status) == [STATIC]
        for asked in (2, 3):
            place.wanted_ = asked
            place.on_change()
            held = f"the script has no elastic state, and cannot use {asked} workers: the run stays at 1"
            status = await place.until(
                lambda status, held=held: warnings(status)[-1] == held and status.target_size == 1 == place.wanted_  # type: ignore[misc]
            )
        assert len(warnings(status)) == 3
        assert (status.world_size, status.phase) == (1, Phase.RUNNING)

    launched(tls, test, spec=replace(RUN, workers=WorkersSpec(1, 1, 4)))


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


def test_what_its_place_warns_of_is_an_event(tls: Path) -> None:
    async def test(place: Place, worker: Worker, running: asyncio.Task[Status]) -> None:
        place.warned.append("pod a is deleted")
        place.on_change()
        await place.until(lambda status: any(event.message == "pod a is deleted" for event in status.events))

    launched(tls, test)


def test_it_begins_with_fewer_than_are_wanted_when_the_time_to_gather_is_over(tls: Path) -> None:
    async def test(place: Place, worker: Worker, running: asyncio.Task[Status]) -> None:
        place.wanted_ = 2
        worker.writer.write(encode(Ready(warm=False)))
        async with asyncio.timeout(SOON):
            while not isinstance(message := await worker.hear(), StartRank):
                assert message is not None
        await place.until(lambda status: status.target_size == 2)

    timing = replace(RUN.timing, gather=0.1)
    launched(tls, test, spec=replace(RUN, workers=WorkersSpec(1, 2, 2), timing=timing))


@pytest.mark.parametrize("noticed", [True, False])
def test_another_worker_is_asked_for_when_one_is_lost_that_had_a_notice(tls: Path, noticed: bool) -> None:
    async def test(place: Place, worker: Worker, running: asyncio.Task[Status]) -> None:
        await rank_started(worker)  # it is in use, and not sent home
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


def test_ranks_hear_again_of_a_deadline_that_has_come_nearer(tls: Path) -> None:
    """A reclaim in two minutes, say, whose pod is then deleted with a grace of 30 s."""

    async def test(place: Place, worker: Worker, running: asyncio.Task[Status]) -> None:
        await rank_started(worker)
        far = utc_now().replace(microsecond=0) + timedelta(seconds=120)
        deadlines = [far, far - timedelta(seconds=90), far - timedelta(seconds=95)]
        for number, deadline in enumerate(deadlines, 1):
            place.deadlines["w"] = deadline
            place.on_change()
            assert await worker.hear_handover() == Handover("w", deadline, number)
        status = await place.until(lambda status: any(event.kind is EventKind.NOTICE for event in status.events))
        assert [event.kind for event in status.events].count(EventKind.NOTICE) == 1

    launched(tls, test)


async def rank_started(worker: Worker) -> None:
    worker.writer.write(encode(Ready(warm=False)))
    async with asyncio.timeout(SOON):
        while not isinstance(message := await worker.hear(), StartRank):
            assert message is not None
    worker.writer.write(encode(RankStarted(message.rank_id, 8)))


class WaitingSession:
    """Of an engine whose worlds have ended, and whose ranks wait for another."""

    def __init__(self, pool: WorkerPool, *_arguments: object) -> None:
        self.pool = pool
        self.rank_of: dict[str, int] = {}
        self.runs: list[asyncio.Task[int]] = []

    @property
    def fact(self) -> SessionFact:
        return SessionFact(SessionState.WAITING, tuple(self.rank_of), holders=tuple(self.rank_of))

    def open(self, ranks: tuple[str, ...], _minimum: int) -> None:
        self.rank_of = {"lost.0.0": 0, **{rank_id: rank for rank, rank_id in enumerate(ranks, start=1)}}
        self.runs = [asyncio.create_task(self.pool.run_rank(rank_id, 0, {})) for rank_id in ranks]

    def list_ranks(self, _ranks: tuple[str, ...], _minimum: int) -> None:
        pass

    async def close(self, _grace: float) -> None:
        for run in self.runs:
            run.cancel()


class TestWhileRanksWait:
    @pytest.fixture(autouse=True)
    def session(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(loop, "find_engine", lambda _name: SimpleNamespace(session=WaitingSession))

    async def begin(self, place: Place, worker: Worker) -> None:
        """The worker's one rank holds the state."""
        await rank_started(worker)
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

    async def end_once_written(self, worker: Worker, running: asyncio.Task[Status]) -> Status:
        """The launcher's last status; it waits until its keeper has written."""
        assert (await worker.hear_last_commit()).keeper == "w.0.0"
        assert not running.done()
        written = CheckpointWritten("file:///c/1", 20, THEN, handover=True, seconds=1.0)
        worker.writer.write(encode(RankSaid("w.0.0~0", decode_line(encode_rank_message(written)))))
        async with asyncio.timeout(SOON):
            return await running

    def test_a_launcher_that_is_taken_has_them_write_before_it_goes(self, tls: Path) -> None:
        async def test(place: Place, worker: Worker, running: asyncio.Task[Status]) -> None:
            await self.begin(place, worker)
            place.tenure_ = LeadershipState.ENDING
            place.on_change()
            status = await self.end_once_written(worker, running)
            assert status.checkpoint == Checkpoint("file:///c/1", 20, THEN)

        launched(tls, test, spec=replace(RUN, checkpoint=CheckpointSpec("file:///c")))

    def test_a_run_that_is_cancelled_has_them_write_before_it_ends(self, tls: Path) -> None:
        async def test(place: Place, worker: Worker, running: asyncio.Task[Status]) -> None:
            await self.begin(place, worker)
            place.cancelled = "the task was cleared"
            place.on_change()
            status = await self.end_once_written(worker, running)
            assert (status.failure, status.reason) == (FailureKind.CANCELLED, "cancelled: the task was cleared")
            assert status.checkpoint == Checkpoint("file:///c/1", 20, THEN)

        launched(tls, test, spec=replace(RUN, checkpoint=CheckpointSpec("file:///c")))

    def test_a_run_that_reaches_its_budget_has_them_write_before_it_ends(self, tls: Path) -> None:
        async def test(place: Place, worker: Worker, running: asyncio.Task[Status]) -> None:
            await self.begin(place, worker)
            status = await self.end_once_written(worker, running)
            assert (status.phase, status.failure) == (Phase.FAILED, FailureKind.BUDGET)
            assert status.reason.startswith("the budget of 33.00 $ is reached")
            assert status.checkpoint == Checkpoint("file:///c/1", 20, THEN)

        # A dollar a second, and 30 s are for the end.
        deadline = DeadlineSpec(budget=33.0, price=3600.0)
        launched(tls, test, spec=replace(RUN, checkpoint=CheckpointSpec("file:///c"), deadline=deadline))

    def test_a_run_without_a_store_is_cancelled_at_once(self, tls: Path) -> None:
        async def test(place: Place, worker: Worker, running: asyncio.Task[Status]) -> None:
            await self.begin(place, worker)
            place.cancelled = "enough"
            place.on_change()
            async with asyncio.timeout(SOON):
                assert (await running).reason == "cancelled: enough"

        launched(tls, test)


class TrainingSession(WaitingSession):
    """Of an engine whose world is complete; its one rank has committed nothing yet."""

    @property
    def fact(self) -> SessionFact:
        ranks = tuple(rank_id for rank_id in self.rank_of if rank_id != "lost.0.0")
        return SessionFact(SessionState.SETTLED, ranks, holders=ranks)


def test_ranks_that_have_committed_nothing_are_not_waited_for_when_a_run_is_cancelled(
    tls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "find_engine", lambda _name: SimpleNamespace(session=TrainingSession))

    async def test(place: Place, worker: Worker, running: asyncio.Task[Status]) -> None:
        await rank_started(worker)
        await place.until(lambda status: any(8 in each.pids for each in status.workers))
        place.cancelled = "enough"
        place.on_change()
        async with asyncio.timeout(SOON):
            assert (await running).reason == "cancelled: enough"

    launched(tls, test, spec=replace(RUN, checkpoint=CheckpointSpec("file:///c")))


@pytest.mark.parametrize(("wanted", "first"), [(2, "v"), (1, "w")])
def test_nothing_is_handed_over_for_a_worker_that_leaves_because_fewer_are_wanted(
    tls: Path, monkeypatch: pytest.MonkeyPatch, wanted: int, first: str
) -> None:
    """Of two that get a notice one after the other: the first has to do with a size that was asked for, or not."""
    monkeypatch.setattr(loop, "find_engine", lambda _name: SimpleNamespace(session=TrainingSession))

    async def test(place: Place, worker: Worker, running: asyncio.Task[Status]) -> None:
        place.wanted_ = 2
        other = await Worker.dial(tls, place.port, "v")
        other.writer.write(encode(Ready(warm=False)))
        try:
            await rank_started(worker)
            await place.until(lambda status: sum(8 in each.pids for each in status.workers) == 1)
            place.wanted_ = wanted
            for name in ("v", "w"):
                place.deadlines[name] = utc_now().replace(microsecond=0) + timedelta(seconds=30)
                place.on_change()
                await place.until(lambda status, name=name: _has_notice(status, name))  # type: ignore[misc]
            assert await worker.hear_handover() == Handover(first, place.deadlines[first], 1)
        finally:
            other.writer.transport.abort()

    launched(tls, test, spec=replace(RUN, workers=WorkersSpec(1, 2, 2)))


def _has_notice(status: Status, worker: str) -> bool:
    return any(event.kind is EventKind.NOTICE and event.worker == worker for event in status.events)


class LateSession(WaitingSession):
    """Of an engine whose world forms, with a rank that has the state, and never is complete."""

    def __init__(self, pool: WorkerPool, _address: str, _port: int, callbacks: SessionCallbacks) -> None:
        super().__init__(pool)
        self.callbacks = callbacks

    @property
    def fact(self) -> SessionFact:
        ranks = tuple(rank_id for rank_id in self.rank_of if rank_id != "lost.0.0")
        return SessionFact(SessionState.FORMING, ranks, world=1, holders=ranks, given_up=True, waiting=ranks)

    def open(self, ranks: tuple[str, ...], minimum: int) -> None:
        super().open(ranks, minimum)
        self.callbacks.on_world(list(ranks))


class TestBeforeASessionIsClosed:
    SPEC = replace(RUN, checkpoint=CheckpointSpec("file:///c"), timing=replace(RUN.timing, forming=0.5))

    @pytest.fixture(autouse=True)
    def session(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(loop, "find_engine", lambda _name: SimpleNamespace(session=LateSession))

    @staticmethod
    async def restarted(place: Place) -> str:
        def found(status: Status) -> list[str]:
            return [event.message for event in status.events if event.kind is EventKind.RESTARTED]

        return found(await place.until(lambda status: bool(found(status))))[0]

    def test_one_that_has_the_state_writes_it(self, tls: Path) -> None:
        async def test(place: Place, worker: Worker, running: asyncio.Task[Status]) -> None:
            await rank_started(worker)
            while (await worker.hear_last_commit()).keeper != "w.0.0":
                pass
            written = CheckpointWritten("file:///c/1", 20, THEN, handover=True, seconds=1.0)
            worker.writer.write(encode(RankSaid("w.0.0~0", decode_line(encode_rank_message(written)))))
            message = await self.restarted(place)
            assert message == "1 ranks start from the newest checkpoint"
            assert place.published[-1].checkpoint == Checkpoint("file:///c/1", 20, THEN)

        launched(tls, test, spec=self.SPEC)

    def test_the_state_that_nobody_could_write_is_said_to_be_lost(self, tls: Path) -> None:
        async def test(place: Place, worker: Worker, running: asyncio.Task[Status]) -> None:
            await rank_started(worker)
            assert "no rank could write the state within" in await self.restarted(place)

        launched(tls, test, spec=self.SPEC)


def test_a_place_may_give_fewer_workers_than_are_asked_for(tls: Path) -> None:
    async def test(place: Place, worker: Worker, _: asyncio.Task[Status]) -> None:
        place.wanted_, place.given = 3, 1
        worker.writer.write(encode(Ready(True)))
        status = await place.until(lambda status: status.events and status.target_size == 3)
        assert [event.message for event in status.events if event.kind is EventKind.SIZE_ASKED][
            -1
        ] == "as the pool gives"
        async with asyncio.timeout(SOON):  # At once: nobody else is waited for.
            while not isinstance(await worker.hear(), StartRank):
                pass

    launched(tls, test, spec=replace(RUN, workers=WorkersSpec(1, 1, 3), timing=replace(RUN.timing, gather=600.0)))
