"""Ranks that train apart, with the launcher's queues and a world that breaks when one is lost.

Each is a thread, of which one runs at a time: at each request and collective, chance says which goes on.
"""

from __future__ import annotations

import copy
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any

from elastic_runtime import Shards
from elastic_runtime.launcher.decision.shard_queues import ShardQueues
from elastic_runtime.protocol.shards import ShardGiven, ShardWanted
from elastic_runtime.training.batches.rounds import Round


class Lost(Exception):
    """This rank is killed."""


class WorldLost(Exception):
    """Another is."""


class Turns:
    """Threads that go on one at a time."""

    def __init__(self, rng: Random) -> None:
        self.rng, self.ended = rng, threading.Semaphore(0)
        self.waiting: dict[int, tuple[Callable[[], bool], threading.Semaphore]] = {}

    def wait(self, until: Callable[[], bool] = lambda: True) -> None:
        """Let another thread go on, until this one may."""
        turn = threading.Semaphore(0)
        self.waiting[threading.get_ident()] = until, turn
        self.ended.release()
        turn.acquire()

    def run(self, functions: Sequence[Callable[[], None]]) -> None:
        """Each in a thread, to its end."""

        def thread(function: Callable[[], None]) -> None:
            self.wait()
            function()
            self.ended.release()

        threads = [threading.Thread(target=thread, args=(each,), daemon=True) for each in functions]
        for each in threads:
            each.start()
            self.ended.acquire()
        while self.waiting:
            ready = [ident for ident, (until, _) in self.waiting.items() if until()]
            assert ready, "each rank waits for another"
            self.waiting.pop(self.rng.choice(ready))[1].release()
            self.ended.acquire()


class Launcher:
    """Queues in virtual time: each request takes up to a second."""

    def __init__(self, rng: Random) -> None:
        self.queues, self.rng, self.turns, self.now = ShardQueues(), rng, Turns(rng), 0.0
        self.world = World(1, self.turns)

    def link(self, name: str) -> Any:
        """Of the rank with that name."""

        def take(wanted: ShardWanted) -> ShardGiven:
            self.turns.wait()
            self.now += self.rng.random()
            return self.queues.take(self.world, name, wanted, self.now, broken=self.world.is_broken)

        return SimpleNamespace(had_agent=True, take_shard=take)


class World:
    """One world of ranks."""

    def __init__(self, size: int, turns: Turns) -> None:
        self.size, self.turns, self.is_broken = size, turns, False
        self.begun = Counter[int]()
        self.values: dict[int, dict[int, Any]] = {}
        """Of each collective, by rank."""

    def gather(self, rank: int, value: Any) -> list[Any]:
        """Of all ranks. A collective, which may end on some ranks and fail on others."""
        values = self.values.setdefault(self.begun[rank], {})
        self.begun[rank] += 1
        values[rank] = value
        self.turns.wait(lambda: self.is_broken or len(values) == self.size)
        if len(values) < self.size or (self.is_broken and self.turns.rng.random() < 0.5):
            raise WorldLost
        return [values[each] for each in range(self.size)]


class Seat:
    """A rank's place in whichever world, as :class:`elastic_runtime.world.World`."""

    def __init__(self, world: World) -> None:
        self.rank, self.size, self.world = 0, 1, world

    def maximum(self, numbers: Sequence[float]) -> list[float]:
        return [max(each) for each in zip(*self.world.gather(self.rank, numbers), strict=True)]


class Local:
    """What a rank learns: how often it has trained on each shard since the last meeting."""

    def __init__(self) -> None:
        self.counts = Counter[int]()

    def state_dict(self) -> dict[int, int]:
        return self.counts

    def load_state_dict(self, state: dict[int, int]) -> None:
        self.counts = Counter(copy.copy(state))


@dataclass
class Rank:
    """One process, which may be in several worlds."""

    name: str
    launcher: Launcher
    settings: dict[str, Any]
    dies_after: Callable[[], bool] = lambda: False
    local: Local = field(default_factory=Local)
    trained: int = 0
    """Shards."""
    apart: int = 0
    """Of these, since the last meeting."""
    committed: dict[str, Any] = field(default_factory=lambda: {"step": 0, "shards": [], "counts": Counter()})
    is_lost: bool = False
    error: Exception | None = None

    def __post_init__(self) -> None:
        self.seat = Seat(self.launcher.world)
        self.state = SimpleNamespace(step=0, shards=[], counts=Counter[int](), commit=self.commit)
        given = {"mode": "asynchronous", "local": [self.local], "world": self.seat}
        self.shards = Shards(state=self.state, link=self.launcher.link(self.name), **{**given, **self.settings})

    def restore(self, committed: dict[str, Any]) -> None:
        """Another world begins with this."""
        self.committed = copy.deepcopy(committed)
        vars(self.state).update(copy.deepcopy(committed))
        self.local.counts = Counter()

    def train(self) -> None:
        """To the end of the training or of the world."""
        try:
            for round_ in self.shards:
                for shard in round_:
                    self.may_die()
                    self.trained, self.apart = self.trained + 1, self.apart + 1
                    self.local.counts[shard.index] += 1
                self.may_die()
                if isinstance(round_, Round):
                    weights = self.seat.world.gather(self.seat.rank, round_.meet())
                    assert abs(sum(weights) - 1.0) < 1e-9
                total = sum(self.seat.world.gather(self.seat.rank, self.local.counts.copy()), Counter[int]())
                assert total.total() == round_.size
                self.state.counts = self.state.counts + total
                self.may_die()
                self.commit()
                self.local.counts, self.apart = Counter(), 0
        except Lost:
            self.is_lost = True
            self.seat.world.is_broken = True
        except WorldLost:
            pass
        except Exception as error:  # noqa: BLE001  # for the test's thread
            self.error = error
            self.seat.world.is_broken = True

    def commit(self) -> None:
        """In memory."""
        self.committed = {name: copy.deepcopy(getattr(self.state, name)) for name in ("step", "shards", "counts")}

    def may_die(self) -> None:
        if self.dies_after():
            raise Lost


def train_in_one_world(launcher: Launcher, ranks: list[Rank], committed: dict[str, Any]) -> bool:
    """Whether all came to the end."""
    world = launcher.world = World(len(ranks), launcher.turns)
    for number, rank in enumerate(ranks):
        rank.seat.rank, rank.seat.size, rank.seat.world = number, len(ranks), world
        rank.restore(committed)
    launcher.turns.run([rank.train for rank in ranks])
    for rank in ranks:
        if rank.error:
            raise rank.error
    return not world.is_broken


def train_disturbed(rng: Random, settings: dict[str, Any], disturbances: int) -> dict[str, Any]:
    """In one world after another, until no rank is lost any more. Returns the last commit."""
    launcher, left, made = Launcher(rng), disturbances, 0
    ranks, committed = list[Rank](), {"step": 0, "shards": [], "counts": Counter[int]()}
    while True:
        while len(ranks) < rng.randint(1, 4):
            made += 1
            ranks.append(Rank(f"rank-{made}", launcher, settings))
        for rank in ranks:
            rank.dies_after = (lambda: rng.random() < 0.05) if left else (lambda: False)
        if train_in_one_world(launcher, ranks, committed):
            return ranks[0].committed
        left = max(0, left - 1)
        ranks = [each for each in ranks if not each.is_lost]
        if ranks:  # The next world may begin with any of their last commits.
            committed = rng.choice(ranks).committed
            rng.shuffle(ranks)
        elif rng.random() < 0.5:
            launcher = Launcher(rng)
