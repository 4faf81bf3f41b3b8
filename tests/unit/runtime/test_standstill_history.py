"""What becomes of a run whose ranks stand still, on virtual time: the launcher's decision, its pool, a real session."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import wraps

from elastic_runtime.engines.base import SessionCallbacks, SessionState
from elastic_runtime.engines.torch import messages
from elastic_runtime.engines.torch.messages import (
    AnotherWanted,
    Connected,
    EnterWorld,
    LeftOut,
    ReadyForWorld,
    Synced,
    WorldBroken,
)
from elastic_runtime.engines.torch.session import TorchSession
from elastic_runtime.errors import FailureKind
from elastic_runtime.launcher.decision.decide import decide, observe
from elastic_runtime.launcher.decision.facts import (
    AskRanks,
    Clocks,
    Decision,
    DecisionSettings,
    EndStandstill,
    Facts,
    Finish,
    ListRanks,
    OpenSession,
    ReformWorld,
)
from elastic_runtime.launcher.standstills import Standstills
from elastic_runtime.launcher.worker_pool import WorkerPool
from elastic_runtime.protocol.rank_link import Busy, Standing
from elastic_runtime.protocol.rank_names import rank_id_of
from elastic_runtime.protocol.wire import DumpStacks, RankExited, StartRank, StopRank, TellRank
from elastic_runtime.run.spec import RecoverySpec, Timing, WorkersSpec
from tests.unit.runtime.test_worker_pool import Connection
from tests.unit.runtime.worlds_bench import turns

STANDSTILL = 60.0
WAITS = Standing(commits=0, collectives=1, waits=True, place="train.py:20")
LOADS = Standing(commits=0, collectives=0, place="data.py:7")
ELSEWHERE = Standing(commits=0, collectives=1, waits=True, place="train.py:31")
SLEEPS = None
"""No answer: its process is stopped."""
Fault = Callable[[int, str, int], "Standing | bool | None"]
"""By the rank's number, its name and the world: how it stands at that step; False: it does not stand still there."""


@dataclass
class Run:
    """Three ranks that commit once a second, and stand still at some steps."""

    faults: dict[int, Fault] = field(default_factory=dict)
    now: float = 1000.0
    step: int = 0
    worlds: list[int] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    exits: list[str] = field(default_factory=list)
    busy: dict[str, float] = field(default_factory=dict)
    """Until when, by the rank's name."""
    end: Decision | None = None
    tells: bool = True
    """Whether rank 0 tells of its commits."""

    def __post_init__(self) -> None:
        recovery = RecoverySpec(standstill=STANDSTILL)
        self.settings = DecisionSettings(WorkersSpec(1, 3, 3), recovery, Timing(lease=0.0, stop_grace=1.0))
        self.pool = WorkerPool(recovery, 1.0, lambda: self.now)
        self.standstills = Standstills(lambda: self.now)
        self.clocks = Clocks(launched=self.now)
        self.connections = [Connection(f"worker-{index}") for index in range(3)]
        for each in self.connections:
            self.pool.add(each, datetime(2026, 1, 2, tzinfo=UTC)).ready = True
        self.session: TorchSession | None = None
        self.last = self.now

    # Ranks

    def ranks(self) -> dict[str, int]:
        """Numbers of the world's ranks, by name."""
        return self.session.rank_of if self.session else {}

    def stands(self) -> dict[str, Standing | None]:
        """Ranks of the world that do not go on to the next step, and where they are."""
        fault = self.faults.get(self.step + 1)
        found = {each: fault(number, each, len(self.worlds)) for each, number in self.ranks().items()} if fault else {}
        return {each: where for each, where in found.items() if where is None or isinstance(where, Standing)}

    def train(self) -> None:
        if self.session is None or self.session.fact.state is not SessionState.SETTLED or self.stands():
            return
        self.step, self.last = self.step + 1, self.now
        if self.tells:
            self.session.committed()
            self.pool.progressed(self.step)

    def hear(self, connection: Connection) -> None:
        """What that worker was told."""
        worker = self.pool.workers[connection.hello.worker]
        sent, connection.sent = connection.sent, []
        for message in sent:
            match message:
                case StartRank(process):
                    self.pool.rank_started(worker, process, 1)
                    self.say(process, ReadyForWorld())
                case TellRank(process, word):
                    self.told_rank(process, messages.read_session_word(word))
                case StopRank(process):
                    self.pool.rank_exited(worker, RankExited(process, -15))
                case DumpStacks(ask=True):
                    for process in worker.ranks:
                        self.answer(rank_id_of(process))

    def told_rank(self, process: str, word: messages.SessionWord | None) -> None:
        match word:
            case EnterWorld(world):
                self.say(process, Connected(world), Synced(world))
            case WorldBroken() | AnotherWanted() if rank_id_of(process) not in self.stands() or self.waits(process):
                self.say(process, ReadyForWorld())
            case LeftOut():
                raise AssertionError("nobody was to leave")

    def waits(self, process: str) -> bool:
        """Whether it comes back from a collective of a world that breaks."""
        where = self.stands()[rank_id_of(process)]
        return where is not None and where.waits

    def is_busy(self, rank_id: str, seconds: float) -> None:
        """It says so; 0: no more."""
        self.busy[rank_id] = self.now + seconds
        self.standstills.said(rank_id, Busy("evaluation" if seconds else "", seconds))

    def answer(self, rank_id: str) -> None:
        where = self.stands().get(rank_id, WAITS)
        self.standstills.runs(rank_id, stopped=where is SLEEPS)
        if where is not None:
            left = max(0.0, self.busy.get(rank_id, self.now) - self.now)
            self.standstills.said(rank_id, Busy("evaluation", left))
            said = Standing(where.commits, where.collectives, self.step, self.now - self.last, where.waits, where.place)
            self.standstills.said(rank_id, said)

    def say(self, process: str, *words: messages.RankWord) -> None:
        assert self.session is not None
        for word in words:
            self.session.heard(rank_id_of(process), messages.write_rank_word(word))

    # The launcher

    def facts(self) -> Facts:
        ranks = self.ranks()
        return Facts(
            wanted=3,
            workers=self.pool.facts(),
            session=self.session.fact if self.session else None,
            trained=bool(self.worlds),
            commits=self.pool.leave_time.commits,
            ended=self.pool.ended(ranks),
            excused=self.standstills.excused(ranks),
            inquiry=self.standstills.inquiry(ranks),
            stalls=self.standstills.stalls,
        )

    def act(self) -> None:
        facts = self.facts()
        self.clocks = observe(self.clocks, facts, self.settings, self.now)
        decision = decide(facts, self.clocks, self.settings, self.now)
        for action in decision.actions:
            match action:
                case OpenSession(ranks, minimum):
                    told = SessionCallbacks(lambda: None, self.world, self.exit, self.pool.retire)
                    self.session = TorchSession(self.pool, told)
                    self.session.open(ranks, minimum)
                case ListRanks(ranks, minimum) if self.session:
                    self.session.list_ranks(ranks, minimum)
                case ReformWorld() if self.session:
                    self.session.reform()
                case AskRanks(_, quiet, early):
                    self.standstills.asks(self.step, quiet=quiet, early=early)
                    self.pool.dump_stacks(ask=True, quiet=quiet)
                case EndStandstill(stall, rank_ids, reason) if self.session:
                    self.told.append(reason)
                    self.standstills.acts(stall)
                    for rank_id in rank_ids:
                        self.pool.kill_rank(rank_id)
                    if not rank_ids:
                        self.session.break_up()
                case Finish():
                    self.end = decision
                case _:
                    raise AssertionError(action)

    def world(self, members: list[str]) -> None:
        self.pool.new_world()
        self.standstills.new_world(members)
        self.worlds.append(len(members))
        self.last = self.now

    def exit(self, rank_id: str, _code: int, expected: bool) -> None:
        assert not expected
        self.exits.append(rank_id)

    async def until(self, there: Callable[[], bool], seconds: float = 1000.0) -> float:
        """Go on until that is so. Returns how long it took."""
        begun = self.now
        while not there():
            assert self.now - begun < seconds, (self.step, self.worlds, self.told, self.end)
            self.now += 1.0
            self.train()
            self.act()
            await turns()
            for each in self.connections:
                self.hear(each)
            await turns()
        return self.now - begun


def history(faults: dict[int, Fault]) -> Callable[[Callable[[Run], Awaitable[None]]], Callable[[], None]]:
    def decorate(test: Callable[[Run], Awaitable[None]]) -> Callable[[], None]:
        @wraps(test)
        def play() -> None:
            async def scene() -> None:
                run = Run(faults)
                await test(run)
                closing = asyncio.ensure_future(run.session.close(0.0)) if run.session else None
                while closing is not None and not closing.done():
                    await turns()
                    for each in run.connections:
                        run.hear(each)

            asyncio.run(scene())

        del play.__wrapped__  # type: ignore[attr-defined]  # or pytest takes its argument for a fixture
        return play

    return decorate


def once(where: Standing | None, rank: int = 1) -> Fault:
    """That rank, in the first world alone; the others wait for it."""
    return lambda number, _name, world: world == 1 and (where if number == rank else WAITS)


@history({20: once(SLEEPS)})
async def test_a_rank_that_sleeps_is_replaced_and_the_others_go_on(run: Run) -> None:
    await run.until(lambda: run.step == 19)
    asleep = next(rank_id for rank_id, number in run.ranks().items() if number == 1)
    waited = await run.until(lambda: run.step == 20)
    assert waited <= STANDSTILL + 10.0
    [told] = run.told
    assert f"at step 19: rank 1 ({asleep}): its process is stopped; it is replaced" in told
    await run.until(lambda: run.step == 30)
    assert (run.worlds, run.exits) == ([3, 2, 3], [asleep])
    assert run.end is None


@history({20: once(LOADS, 0), 40: lambda number, _name, _world: LOADS if number == 2 else WAITS})
async def test_another_step_is_another_standstill_and_the_same_is_the_end(run: Run) -> None:
    await run.until(lambda: run.step == 39)
    assert ["rank 0" in told for told in run.told] == [True]
    await run.until(lambda: run.end is not None)
    assert ["data.py:7" in told for told in run.told] == [True, True]
    assert run.end is not None
    [finish] = run.end.actions
    assert isinstance(finish, Finish)
    assert finish.failure is FailureKind.STANDSTILL
    assert "stands still at step 39 for the second time: rank 2 (" in run.end.reason
    assert len(run.exits) == 2


@history({20: once(LOADS)})
async def test_a_rank_that_was_busy_before_is_at_fault_like_any_other(run: Run) -> None:
    """Each answer says that it is not busy now, which excuses nothing."""
    await run.until(lambda: run.step == 19)
    for rank_id in run.ranks():
        run.is_busy(rank_id, 3.0)
        run.is_busy(rank_id, 0.0)
    waited = await run.until(lambda: run.step == 20)
    assert waited <= STANDSTILL + 10.0
    assert "data.py:7, while others wait in a collective; it is replaced" in run.told[0]


@history({20: once(ELSEWHERE)})
async def test_a_rank_in_another_collective_is_replaced(run: Run) -> None:
    await run.until(lambda: run.step == 30)
    assert "stands at train.py:31, and the others at train.py:20; it is replaced" in run.told[0]
    assert (run.worlds, len(run.exits)) == ([3, 2, 3], 1)


@history({20: lambda _number, _name, world: world == 1 and WAITS})
async def test_where_nobody_is_at_fault_all_go_on_in_another_world(run: Run) -> None:
    await run.until(lambda: run.step == 30)
    assert "at step 19: each rank waits for the others" in run.told[0]
    assert (run.worlds, run.exits) == ([3, 3], [])


@history({20: lambda _number, _name, _world: WAITS})
async def test_where_nobody_is_at_fault_twice_the_run_ends(run: Run) -> None:
    await run.until(lambda: run.end is not None)
    assert (run.worlds, run.exits, len(run.told)) == ([3, 3], [], 1)


@history({})
async def test_commits_that_rank_0_does_not_tell_are_found_by_asking(run: Run) -> None:
    await run.until(lambda: run.step == 19)
    run.tells = False
    await run.until(lambda: run.step == 400)
    assert (run.worlds, run.told, run.exits) == ([3], [], [])


@history({20: lambda _number, _name, world: world == 1 and LOADS})
async def test_an_evaluation_of_all_ranks_that_is_named_disturbs_nobody(run: Run) -> None:
    await run.until(lambda: run.step == 19)
    evaluates = next(iter(run.ranks()))
    run.is_busy(evaluates, 900.0)
    begun = run.now
    await run.until(lambda: run.now - begun > 850.0)
    run.is_busy(evaluates, 0.0)
    run.faults.clear()
    await run.until(lambda: run.step == 30)
    assert (run.worlds, run.told, run.exits) == ([3], [], [])


@history({20: lambda _number, _name, world: world == 1 and LOADS})
async def test_an_evaluation_of_all_ranks_that_is_not_named_has_more_time(run: Run) -> None:
    await run.until(lambda: run.step == 19)
    begun = run.now
    await run.until(lambda: run.now - begun > 2.9 * STANDSTILL)
    run.faults.clear()
    await run.until(lambda: run.step == 30)
    assert (run.worlds, run.told, run.exits) == ([3], [], [])


@history({20: lambda _number, _name, world: world == 1 and LOADS})
async def test_ranks_that_are_busy_for_longer_than_they_said_are_asked(run: Run) -> None:
    await run.until(lambda: run.step == 19)
    for rank_id in run.ranks():
        run.is_busy(rank_id, 100.0)
    waited = await run.until(lambda: bool(run.told), 500.0)
    assert 100.0 + 3 * STANDSTILL < waited < 100.0 + 3 * STANDSTILL + 10.0
    assert "no rank waits for another" in run.told[0]
