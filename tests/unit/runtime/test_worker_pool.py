"""Workers, their slots, and the ranks that run in them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import ClassVar

import pytest

from elastic_runtime.engines.exits import LOST
from elastic_runtime.errors import InvalidDocument
from elastic_runtime.launcher.agents import AgentConnection
from elastic_runtime.launcher.decision.facts import Ending, SlotFact, WorkerFact
from elastic_runtime.launcher.worker_pool import Worker, WorkerPool
from elastic_runtime.protocol.rank_link import OWN_TIME, RESTART_SIGNAL, CommitDeadline, Handover, TrainingEnded
from elastic_runtime.protocol.wire import (
    Hello,
    Host,
    Hosts,
    LauncherMessage,
    LetEnd,
    RankExited,
    Release,
    StartRank,
    StopRank,
)
from elastic_runtime.run.spec import RecoverySpec, RestartSpec

NOON = datetime(2026, 1, 2, tzinfo=UTC)


class Connection(AgentConnection):
    """Keeps what it was to send."""

    def __init__(self, name: str, slots: int = 1, address: str = "") -> None:
        super().__init__(Hello(name, "node", 1, slots, f"eth-{name}", address), writer=None)  # type: ignore[arg-type]  # no writer
        self.sent: list[LauncherMessage] = []

    def send(self, message: LauncherMessage) -> None:
        self.sent.append(message)


@dataclass
class Scene:
    now: float = 100.0
    world: int = 1
    connections: dict[str, Connection] = field(default_factory=dict)

    def __post_init__(self) -> None:
        recovery = RecoverySpec(backoff=1.0, backoff_maximum=3.0, backoff_forgiven=60.0)
        self.pool = WorkerPool(recovery, 7.0, lambda: self.now, RestartSpec("SIGUSR1", 9.0), lambda: self.world)

    def add(self, name: str, slots: int = 1, ready: bool = True, address: str = "") -> Worker:
        self.connections[name] = Connection(name, slots, address)
        worker = self.pool.add(self.connections[name], NOON)
        worker.ready = ready
        return worker

    def sent(self, name: str) -> list[LauncherMessage]:
        return self.connections[name].sent

    async def run(
        self,
        rank_id: str,
        code: int,
        attempt: int = 0,
        *,
        lived: float = 0.0,
        stop: bool = False,
    ) -> int:
        """Start it, and have its agent say that it has ended."""
        task = asyncio.create_task(self.pool.run_rank(rank_id, attempt, {}))
        await asyncio.sleep(0)
        self.now += lived
        if stop:
            self.pool.stop_ranks()
        process = f"{rank_id}~{attempt}"
        [worker] = [each for each in self.pool.workers.values() if process in each.ranks]
        self.pool.rank_exited(worker, RankExited(process, code))
        return await task


def play(act: Callable[[Scene], Awaitable[None]]) -> None:
    async def run() -> None:
        await act(Scene())

    asyncio.run(run())


def test_facts() -> None:
    scene = Scene()
    scene.add("a", slots=2)
    scene.now = 100.0
    b = scene.add("b", ready=False)
    scene.pool.record_deadline(b, NOON, 30.0, punctual=True)
    scene.pool.record_deadline(b, NOON + timedelta(seconds=5), 35.0, punctual=True)
    scene.add("c").ranks["c.0.0~0"] = None
    scene.pool.release("c", "enough")
    scene.add("d").ranks["d.0.0~0"] = None
    assert scene.pool.facts() == (
        WorkerFact("a", True, (SlotFact("a.0.0"), SlotFact("a.1.0"))),
        WorkerFact("b", False, (SlotFact("b.0.0"),), leaving=True, gone_at=130.0, punctual=True),
        WorkerFact("d", True, (SlotFact("d.0.0"),), running=True),
    )
    assert scene.sent("c") == [Release("enough")]


@pytest.mark.parametrize(("first", "second", "both"), [(True, True, True), (True, False, False), (False, True, False)])
def test_a_worker_is_there_until_its_deadline_while_all_notices_say_so(first: bool, second: bool, both: bool) -> None:
    """A machine that is taken in two minutes may be drained before."""
    scene = Scene()
    a = scene.add("a")
    scene.pool.record_deadline(a, NOON, 120.0, punctual=first)
    assert scene.pool.facts()[0].punctual == first
    scene.pool.record_deadline(a, NOON + timedelta(seconds=5), 125.0, punctual=second)
    assert scene.pool.facts()[0].punctual == both


def test_runs_a_rank_on_its_own_slot() -> None:
    async def act(scene: Scene) -> None:
        scene.add("a", slots=2)
        task = asyncio.create_task(scene.pool.run_rank("a.1.0", 2, {"X": "y"}))
        await asyncio.sleep(0)
        assert scene.sent("a") == [StartRank("a.1.0~2", 1, {"X": "y", RESTART_SIGNAL: "SIGUSR1", OWN_TIME: "10.0"})]
        assert scene.pool.workers["a"].ranks == {"a.1.0~2": None}
        assert scene.pool.interface("a.1.0") == "eth-a"
        scene.pool.stop_ranks()
        assert scene.sent("a")[1:] == [StopRank("a.1.0~2", 7.0)]
        scene.pool.rank_exited(scene.pool.workers["a"], RankExited("a.1.0~2", 0))
        assert await task == 0
        assert scene.pool.workers["a"].ranks == {}

    play(act)


def test_ranks_are_stopped_of_which_some_write_where_they_stand() -> None:
    async def act(scene: Scene) -> None:
        scene.add("a")
        scene.add("b")
        tasks = [asyncio.create_task(scene.pool.run_rank(f"{each}.0.0", 0, {})) for each in "ab"]
        await asyncio.sleep(0)
        scene.pool.stop_ranks(stacks=["a.0.0"])
        assert scene.sent("a")[1:] == [StopRank("a.0.0~0", 7.0, stacks=True)]
        assert scene.sent("b")[1:] == [StopRank("b.0.0~0", 7.0)]
        for each in "ab":
            scene.pool.rank_exited(scene.pool.workers[each], RankExited(f"{each}.0.0~0", -15))
        await asyncio.gather(*tasks)

    play(act)


def test_ranks_are_interrupted_as_the_run_says_or_killed() -> None:
    async def act(scene: Scene) -> None:
        scene.add("a")
        task = asyncio.create_task(scene.pool.run_rank("a.0.0", 0, {}))
        await asyncio.sleep(0)
        scene.pool.interrupt_ranks()
        scene.pool.kill_ranks()
        interrupt = StopRank("a.0.0~0", 9.0, signal.SIGUSR1)
        assert scene.sent("a")[1:] == [interrupt, StopRank("a.0.0~0", 0.0)]
        scene.pool.rank_exited(scene.pool.workers["a"], RankExited("a.0.0~0", 1))
        await task
        assert scene.pool.facts()[0].slots[0].usable_at == 0.0, "nobody is held back for what was asked for"

    play(act)


def test_a_rank_goes_with_its_worker() -> None:
    async def act(scene: Scene) -> None:
        scene.add("a")
        task = asyncio.create_task(scene.pool.run_rank("a.0.0", 0, {}))
        await asyncio.sleep(0)
        scene.pool.remove("a")
        assert await task == LOST
        assert await scene.pool.run_rank("a.0.0", 1, {}) == LOST
        assert scene.pool.interface("a.0.0") is None
        assert scene.pool.worker_of("a.0.0") is None

    play(act)


def test_each_rank_of_a_slot_has_a_name_of_its_own() -> None:
    scene = Scene()
    worker = scene.add("a.b", slots=2)  # a name may have dots
    scene.pool.retire("a.b.1.0")
    assert [slot.rank_id for slot in worker.slots] == ["a.b.0.0", "a.b.1.1"]
    scene.pool.retire("a.b.1.0")  # that one is over already
    assert [slot.rank_id for slot in worker.slots] == ["a.b.0.0", "a.b.1.1"]
    assert scene.pool.interface("a.b.1.0") is None
    assert scene.pool.worker_of("a.b.1.0") is worker


def test_a_slot_whose_ranks_fail_is_held_back_longer_and_longer() -> None:
    async def act(scene: Scene) -> None:
        [slot] = scene.add("a").slots
        await scene.run("a.0.0", 0)
        assert slot.usable_at == 0.0
        for attempt, delay in enumerate([1.0, 2.0, 3.0, 3.0]):
            await scene.run("a.0.0", 1, attempt=attempt)
            assert slot.usable_at == scene.now + delay

    play(act)


def test_a_slot_is_forgiven_once_its_rank_has_run_for_long() -> None:
    async def act(scene: Scene) -> None:
        [slot] = scene.add("a").slots
        delays = []
        for attempt, lived in enumerate([0.0, 59.0, 0.0, 60.0, 0.0]):
            await scene.run("a.0.0", 1, attempt=attempt, lived=lived)
            delays.append(slot.usable_at - scene.now)
        assert delays == [1.0, 2.0, 3.0, 1.0, 2.0]

    play(act)


def test_a_worker_that_is_lost_and_comes_back_again_and_again_is_held_back_longer_and_longer() -> None:
    async def act(scene: Scene) -> None:
        for name, delay in [("pod-x", 0.0), ("pod-x.r1", 1.0), ("pod-x.r2", 2.0), ("pod-x.r3", 3.0), ("pod-x.r4", 3.0)]:
            [slot] = scene.add(name).slots
            assert slot.usable_at == (scene.now + delay if delay else 0.0)
            task = asyncio.create_task(scene.pool.run_rank(slot.rank_id, 0, {}))
            await asyncio.sleep(0)
            scene.pool.remove(name)
            assert await task == LOST
        scene.now += 3.0 + 60.0
        scene.add("other")
        await scene.run("other.0.0", 1)
        assert scene.add("pod-x.r5").slots[0].usable_at == 0.0, "it has not been seen for long"

    play(act)


def test_who_shares_a_host() -> None:
    scene = Scene()
    alone, two = scene.add("a"), scene.add("b", slots=2)
    alone.ranks["a.0.0~0"] = two.ranks["b.0.0~0"] = None
    assert not scene.pool.shares_host(alone)
    assert not scene.pool.shares_host(two)
    two.ranks["b.1.0~0"] = None
    assert scene.pool.shares_host(two)
    assert not scene.pool.shares_host(alone)


def test_nobody_is_held_back_for_the_failure_of_another() -> None:
    async def act(scene: Scene) -> None:
        [slot] = scene.add("a").slots
        await scene.run("a.0.0", 1)
        assert slot.usable_at == scene.now + 1.0
        own = slot.usable_at
        scene.now += 0.5
        await scene.run("a.0.0", -6, attempt=1)
        assert slot.usable_at == scene.now + 2.0
        scene.pool.forgive("a.0.0")
        scene.pool.forgive("a.0.0")
        assert slot.usable_at == own, "its own failure before stays"
        await scene.run("a.0.0", 1, attempt=2)
        assert slot.usable_at == scene.now + 2.0

    play(act)


def test_nobody_is_held_back_for_being_stopped_or_taken_away() -> None:
    async def act(scene: Scene) -> None:
        [slot] = scene.add("a").slots
        await scene.run("a.0.0", -15, stop=True)
        assert slot.usable_at == 0.0
        scene.pool.workers["a"].deadline = NOON
        await scene.run("a.0.0", -9, attempt=1)
        assert slot.usable_at == 0.0

    play(act)


def test_every_worker_hears_of_a_handover() -> None:
    scene = Scene()
    scene.add("a")
    scene.add("b")
    scene.pool.hand_over("b", NOON)
    scene.pool.hand_over("a", NOON)
    assert scene.sent("a") == scene.sent("b") == [Handover("b", NOON, 1), Handover("a", NOON, 2)]


def test_a_last_commit_is_due_once_every_worker_of_the_world_will_be_taken() -> None:
    scene = Scene()
    a, b, c = scene.add("a"), scene.add("b", slots=2), scene.add("c")
    world = ("a.0.0", "b.0.0", "b.1.0")
    assert scene.pool.last_commit_by(()) is None
    assert scene.pool.last_commit_by(world) is None
    a.deadline = c.deadline = NOON + timedelta(seconds=5)
    assert scene.pool.last_commit_by(world) is None, "b will have the state"
    assert scene.pool.last_commit_by(("c.0.0",)) == NOON + timedelta(seconds=5)
    b.deadline = NOON
    assert scene.pool.last_commit_by(world) == NOON
    scene.pool.tell_last_commit(CommitDeadline(NOON))
    assert scene.sent("a") == scene.sent("b") == scene.sent("c") == [CommitDeadline(NOON)]


class TestLastWord:
    """Who of those that wait for a world has to make the state durable."""

    WORLD = ("a.0.0", "b.0.0", "b.1.0", "c.0.0")

    def scene(self, *ranks: str) -> Scene:
        """These run; ``new`` is here without one."""
        scene = Scene()
        for name in ("a", "b", "c", "new"):
            scene.add(name, slots=2)
        for rank_id in ranks:
            scene.pool.workers[rank_id[0]].ranks[f"{rank_id}~0"] = None
        return scene

    def word(self, scene: Scene, holders: tuple[str, ...] = WORLD, by: datetime | None = None) -> CommitDeadline:
        return scene.pool.last_word(holders, by)

    def give_notice(self, scene: Scene, **seconds: float) -> None:
        for name, ahead in seconds.items():
            scene.pool.workers[name].deadline = NOON + timedelta(seconds=ahead)

    def test_is_for_the_lowest_rank_that_is_left(self) -> None:
        scene = self.scene("c.0.0", "b.1.0")
        self.give_notice(scene, a=5, b=5, c=5)
        assert self.word(scene) == CommitDeadline(NOON + timedelta(seconds=5), "b.1.0")

    def test_is_for_another_that_is_there_longer_and_until_its_end(self) -> None:
        scene = self.scene("a.0.0", "c.0.0")
        self.give_notice(scene, a=5, c=9)
        assert self.word(scene) == CommitDeadline(NOON + timedelta(seconds=9), "c.0.0")

    def test_is_not_needed_while_one_of_them_stays(self) -> None:
        scene = self.scene("a.0.0", "b.0.0", "c.0.0")
        self.give_notice(scene, a=9, c=5)
        assert self.word(scene) == CommitDeadline(None)

    def test_does_not_count_on_newcomers_that_hold_nothing(self) -> None:
        scene = self.scene("a.0.0")
        self.give_notice(scene, a=9)
        assert self.word(scene).keeper == "a.0.0", "new has no notice, and no state"

    def test_does_not_count_on_who_joined_a_world_that_broke_at_once(self) -> None:
        scene = self.scene("a.0.0", "c.0.0")
        self.give_notice(scene, a=5)
        assert self.word(scene, holders=("a.0.0", "b.0.0")).keeper == "a.0.0"
        self.give_notice(scene, c=9)
        assert self.word(scene, holders=("a.0.0", "b.0.0")).keeper == "a.0.0"

    def test_needs_no_notice_when_the_launcher_ends_them_all(self) -> None:
        assert self.word(self.scene("b.0.0"), by=NOON) == CommitDeadline(NOON, "b.0.0")

    def test_is_for_nobody_when_nobody_is_left(self) -> None:
        scene = self.scene()
        self.give_notice(scene, a=9, b=9, c=9)
        assert self.word(scene, by=NOON) == self.word(scene) == CommitDeadline(None)


def test_each_worker_is_told_of_each_world_once() -> None:
    scene = Scene()
    scene.add("a", slots=2, address="10.0.0.1")
    scene.add("b", address="10.0.0.2")
    scene.pool.tell_hosts({})
    assert scene.sent("a") == []
    world = {"a.1.0": 2, "b.0.0": 0, "a.0.0": 1}
    scene.pool.tell_hosts(world)
    first = Hosts((Host("10.0.0.2", 1), Host("10.0.0.1", 2)))
    assert scene.sent("a") == scene.sent("b") == [first]

    scene.add("c", address="10.0.0.3")
    scene.add("of an image from before")
    scene.pool.remove("b")
    scene.pool.tell_hosts(world)  # It is over, and no other one has begun.
    assert (scene.sent("a"), scene.sent("c")) == ([first], [first])
    scene.pool.tell_hosts({"a.0.0": 0, "a.1.0": 1, "c.0.0": 2})
    second = Hosts((Host("10.0.0.1", 2), Host("10.0.0.3", 1)))
    assert (scene.sent("a"), scene.sent("c")) == ([first, second], [first, second])
    assert scene.sent("of an image from before") == []


def test_workers_of_one_address_are_one_host() -> None:
    scene = Scene()
    scene.add("a", address="127.0.0.1")
    scene.add("b", address="127.0.0.1")
    scene.pool.tell_hosts({"a.0.0": 0, "b.0.0": 1})
    assert scene.sent("b") == [Hosts((Host("127.0.0.1", 2),))]


class TestTheEndOfTraining:
    RANKS: ClassVar = {"a.0.0": 0, "b.0.0": 1}

    def both(self) -> Scene:
        scene = Scene()
        for name in "ab":
            scene.add(name).ranks[f"{name}.0.0~0"] = None
        return scene

    def say(self, scene: Scene, name: str, step: int, *, waits: bool = True) -> None:
        scene.pool.training_ended(scene.pool.workers[name], f"{name}.0.0~0", TrainingEnded(step, waits))

    def test_is_known_of_each_rank_that_waits(self) -> None:
        scene = self.both()
        assert scene.pool.ending(self.RANKS) is None
        scene.pool.progressed(13)
        self.say(scene, "b", 12)
        assert scene.pool.ending(self.RANKS) == Ending(((1, 12),), (0,), step=13)
        self.say(scene, "a", 14)
        assert scene.pool.ending(self.RANKS) == Ending(((0, 14), (1, 12)), (), step=13)

    def test_of_a_world_that_lacks_a_rank_is_waited_for_by_nobody(self) -> None:
        scene = self.both()
        self.say(scene, "b", 12)
        assert scene.pool.all_run(self.RANKS)
        scene.pool.remove("a")
        assert scene.pool.ending(self.RANKS) is None
        assert not scene.pool.all_run(self.RANKS)

    def test_is_forgotten_in_the_next_world(self) -> None:
        scene = self.both()
        self.say(scene, "b", 12)
        scene.pool.progressed(12)
        scene.world += 1
        scene.pool.new_world()
        assert (scene.pool.ending(self.RANKS), scene.pool.ended(self.RANKS)) == (None, None)
        self.say(scene, "a", 20)
        assert scene.pool.ending(self.RANKS) == Ending(((0, 20),), (1,))

    def test_of_a_rank_that_does_not_wait_counts_once_the_world_is_over(self) -> None:
        scene = self.both()
        self.say(scene, "b", 12, waits=False)
        assert scene.pool.ending(self.RANKS) is None
        scene.pool.let_end()
        assert scene.sent("b") == []
        scene.pool.rank_exited(scene.pool.workers["b"], RankExited("b.0.0~0", 0))
        scene.pool.rank_exited(scene.pool.workers["a"], RankExited("a.0.0~0", 1))
        assert scene.pool.ended(self.RANKS) == Ending(((1, 12),), (0,))

    def test_in_a_world_is_known_though_it_was_heard_before_that_was_complete(self) -> None:
        scene = self.both()
        self.say(scene, "a", 20)
        scene.world += 1
        self.say(scene, "b", 12, waits=False)
        scene.pool.rank_exited(scene.pool.workers["b"], RankExited("b.0.0~0", 0))
        scene.pool.new_world()
        assert scene.pool.ended(self.RANKS) == Ending(((1, 12),), (0,))

    def test_is_an_exit_with_0_where_the_rank_had_ended_in_a_world_before(self) -> None:
        scene = self.both()
        self.say(scene, "b", 12)
        scene.world += 1
        scene.pool.rank_exited(scene.pool.workers["b"], RankExited("b.0.0~0", 0))
        scene.pool.new_world()
        assert scene.pool.ended(self.RANKS) == Ending(((1, None),), (0,))

    def test_is_an_exit_with_0_where_nothing_was_said(self) -> None:
        scene = self.both()
        scene.pool.rank_exited(scene.pool.workers["b"], RankExited("b.0.0~0", 0))
        assert scene.pool.ended(self.RANKS) == Ending(((1, None),), (0,))

    def test_lets_each_that_waits_go_on_once(self) -> None:
        scene = self.both()
        self.say(scene, "b", 12)
        for _ in range(2):
            scene.pool.let_end()
        assert (scene.sent("a"), scene.sent("b")) == ([], [LetEnd("b.0.0~0")])
        self.say(scene, "b", 12)  # It has no answer yet.
        scene.pool.let_end()
        assert scene.sent("b") == [LetEnd("b.0.0~0")] * 2

    def test_is_told_by_ranks_that_run_there_alone(self) -> None:
        scene = self.both()
        with pytest.raises(InvalidDocument, match=r"no rank a\.0\.0~0 runs on b"):
            scene.pool.training_ended(scene.pool.workers["b"], "a.0.0~0", TrainingEnded(3))
