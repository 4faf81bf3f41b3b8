"""Shards of a step: who gets which, and that each is committed once whatever happens to ranks, worlds and launchers."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime import Shards
from elastic_runtime.errors import InvalidSettings
from elastic_runtime.launcher.decision.shard_queues import MOST_STREAMS, ShardQueues
from elastic_runtime.protocol.rank_link import RankLink
from elastic_runtime.protocol.shards import ShardGiven, ShardWanted
from elastic_runtime.script.standing import ledger
from tests.examples import rewarding

WANTED = ShardWanted("step", "digest", step=1, size=3, number=0)


@dataclass
class Launcher:
    """Queues, and the world that trains."""

    queues: ShardQueues = field(default_factory=ShardQueues)
    world: Hashable = 0

    def link(self, name: str) -> Any:
        """Of the rank with that name."""

        def take(wanted: ShardWanted) -> ShardGiven:
            return self.queues.take(self.world, name, wanted, 0.0)

        return SimpleNamespace(had_agent=True, take_shard=take)


def shards_of(launcher: Launcher, name: str = "a", step: int = 0, **settings: Any) -> Shards:
    """The shards of one rank, whose state is at that step."""
    state = SimpleNamespace(step=step)
    given = {"count": 6, "per_step": 3, "seed": 0, "state": state, "world": SimpleNamespace(rank=0, size=2)}
    return Shards(**{"link": launcher.link(name), **given, **settings})


class Training:
    """Ranks that train in one world after another; what they commit counts how often each shard is in it."""

    def __init__(self, rng: Random, count: int, per_step: int, epochs: int) -> None:
        self.rng, self.settings = rng, {"count": count, "per_step": per_step, "epochs": epochs}
        self.launcher = Launcher()
        self.names = 0
        self.committed = self.durable = (0, Counter[int]())

    def train(self, disturbances: int) -> Counter[int]:
        """To the end. Returns how often each shard is in the last commit."""
        left = disturbances
        while not self.trains_in_one_world(disturbed=left > 0):
            left -= 1
            if self.rng.random() < 0.3:  # All ranks are lost, with or without the launcher.
                self.committed = self.durable
                if self.rng.random() < 0.5:
                    self.launcher = Launcher()
        return self.committed[1]

    def trains_in_one_world(self, *, disturbed: bool) -> bool:
        """Whether it came to the end."""
        self.launcher.world = object()
        ranks = []
        for rank in range(size := self.rng.randint(1, 4)):
            self.names += 1
            world = SimpleNamespace(rank=rank, size=size)
            name, step = f"rank-{self.names}", self.committed[0]
            ranks.append(shards_of(self.launcher, name, step, world=world, **self.settings))
        steps = [iter(each) for each in ranks]
        while None not in (present := [next(each, None) for each in steps]):
            trained, waiting = Counter[int](), list(present)
            while waiting:
                if disturbed and self.rng.random() < 0.05:
                    return False  # A rank is lost; what the others have done since the commit is undone.
                step = self.rng.choice(waiting)
                if (shard := next(step, None)) is None:
                    waiting.remove(step)
                else:
                    trained[shard.index] += 1
            before, self.committed = self.committed, (ranks[0].step, self.committed[1] + trained)
            if self.rng.random() < 0.3:
                self.durable = self.committed
            if disturbed and self.rng.random() < 0.2:  # A planned change, or a loss in the midst of the commit.
                self.committed = (
                    before if self.durable != self.committed and self.rng.random() < 0.5 else self.committed
                )
                return False
        assert present == [None] * size
        return True


@rewarding()
@given(st.randoms(), st.integers(1, 40), st.integers(1, 12), st.integers(1, 3), st.integers(0, 12))
def test_each_shard_is_committed_once_whatever_is_lost(
    rng: Random, count: int, per_step: int, epochs: int, disturbances: int
) -> None:
    training = Training(rng, count, per_step, epochs)
    assert training.train(disturbances) == dict.fromkeys(range(count), epochs)


def test_a_faster_rank_gets_more_of_a_step() -> None:
    launcher = Launcher()
    slow, fast = (next(iter(shards_of(launcher, name, count=10, per_step=10))) for name in ("slow", "fast"))
    for _ in range(2):
        next(slow)
        for _ in range(3):
            next(fast)
    assert len([*fast]) == 2
    assert list(slow) == []
    assert (slow.taken, fast.taken) == (2, 8)


def test_a_training_goes_on_in_the_next_world_in_the_same_loop() -> None:
    launcher = Launcher()
    world = SimpleNamespace(rank=0, size=2)
    shards = shards_of(launcher, world=world, shuffle=False)
    seen = []
    for step in shards:
        seen += [(step.step, shard.index) for shard in step]
        launcher.world, world.size = 1, 3
    assert seen == [(1, 0), (1, 1), (1, 2), (2, 3), (2, 4), (2, 5)]
    assert shards.step == 2


def test_the_same_request_has_the_same_answer() -> None:
    queues = ShardQueues()
    assert [queues.take(1, "a", replace(WANTED, serial=each), 0.0).position for each in (1, 2)] == [0, 0]
    assert queues.take(1, "b", WANTED, 0.0).position == 1
    assert queues.take(1, "a", replace(WANTED, number=1), 0.0).position == 2
    assert queues.take(1, "b", replace(WANTED, number=1, serial=9), 0.0) == ShardGiven(9, given=3)
    assert queues.take(1, "a", WANTED, 0.0).position == 0
    assert queues.take(2, "b", WANTED, 0.0).position == 0


def test_a_step_that_others_have_left_has_nothing_more() -> None:
    queues = ShardQueues()
    for number in range(4):
        queues.take(1, "a", replace(WANTED, number=number), 0.0)
    assert queues.take(1, "a", replace(WANTED, step=2), 0.0).position == 0
    assert queues.take(1, "b", WANTED, 0.0) == ShardGiven(0)
    assert "goes back to step 1" in queues.take(1, "a", WANTED, 0.0).refused


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (replace(WANTED, digest="other"), "not those of the other ranks"),
        (replace(WANTED, number=2), "has got 1 shards of step 1, not 2"),
        (replace(WANTED, step=2), "step 1 has 2 shards left"),
    ],
)
def test_what_would_lose_shards_is_refused(wanted: ShardWanted, words: str) -> None:
    queues = ShardQueues()
    queues.take(1, "a", WANTED, 0.0)
    assert words in queues.take(1, "a", wanted, 0.0).refused


def test_a_run_has_only_so_many_streams() -> None:
    queues = ShardQueues()
    given_ = [queues.take(1, "a", replace(WANTED, stream=str(each)), 0.0) for each in range(MOST_STREAMS + 1)]
    assert [bool(each.refused) for each in given_] == [False] * MOST_STREAMS + [True]


def test_a_refusal_ends_the_rank() -> None:
    launcher = Launcher()
    next(next(iter(shards_of(launcher, "a", names=["x", "y"], count=None))))
    with pytest.raises(InvalidSettings, match="not those of the other ranks"):
        next(next(iter(shards_of(launcher, "b", names=["y", "x"], count=None))))


def test_a_commit_within_a_step_is_refused() -> None:
    step = next(iter(shards_of(Launcher())))
    next(step)
    ledger().commits(1)
    with pytest.raises(InvalidSettings, match="Commit after the loop over a step"):
        next(step)


def test_a_step_that_is_left_before_its_end_is_refused() -> None:
    steps = iter(shards_of(Launcher()))
    next(next(steps))
    with pytest.raises(InvalidSettings, match="step 1 was left before its end"):
        next(steps)


def test_a_loader_s_own_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    step = next(iter(shards_of(Launcher())))
    monkeypatch.setattr(os, "getpid", lambda: 1)
    with pytest.raises(InvalidSettings, match="num_workers=0"):
        next(step)


def test_without_a_launcher_ranks_divide_each_step() -> None:
    alone: Any = SimpleNamespace(had_agent=False)
    seen = Counter[tuple[int, int]]()
    for rank in range(3):
        shards = Shards(
            5, per_step=4, seed=1, state=SimpleNamespace(step=0), link=alone, world=SimpleNamespace(rank=rank, size=3)
        )
        seen.update((step.step, shard.index) for step in shards for shard in step)
    assert sorted(index for _, index in seen) == list(range(5))
    assert Counter(step for step, _ in seen) == {1: 4, 2: 1}


def test_a_rank_without_its_agent_takes_nothing_by_itself() -> None:
    ours, agents = socket.socketpair()
    link = RankLink(ours)
    agents.close()
    link.hear()
    step = next(iter(shards_of(Launcher(), link=link)))
    with pytest.raises(ConnectionError):
        next(step)


def test_a_shard_has_its_name_and_its_samples() -> None:
    shards = shards_of(Launcher(), names=["a.csv", "b.csv", "c.csv"], count=None, epochs=2, shuffle=False)
    steps = [(step.step, step.epoch, step.ends_epoch, step.size, list(step)) for step in shards]
    assert [step[:4] for step in steps] == [(1, 0, True, 3), (2, 1, True, 3)]
    assert [(shard.index, shard.name) for shard in steps[0][4]] == [(0, "a.csv"), (1, "b.csv"), (2, "c.csv")]
    assert [shard.samples(8) for shard in steps[0][4]] == [range(2), range(2, 5), range(5, 8)]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"count": None}, "none of count, names and stream"),
        ({"names": ["a"]}, "or more than one"),
        ({"count": 0}, "Shards.count: 0 is not a whole number from 1"),
        ({"count": True}, "Shards.count"),
        ({"count": 10**9}, "Shards.count"),
        ({"count": None, "names": "train.csv"}, "Shards.names: 'train.csv' is not a list"),
        ({"count": None, "names": []}, "Shards.names"),
        ({"count": None, "names": ["a", ""]}, "Shards.names: '' is not a name"),
        ({"count": None, "names": ["a", 1]}, "Shards.names: 1 is not a name"),
        ({"per_step": 0}, "Shards.per_step"),
        ({"per_step": 2.0}, "Shards.per_step"),
        ({"per_step": 100_001}, "Shards.per_step"),
        ({"seed": -1}, "Shards.seed"),
        ({"epochs": 0}, "Shards.epochs"),
        ({"state": SimpleNamespace()}, "Shards.state: the state's attribute 'step' is None"),
        ({"position": "shards"}, "Make the state with shards=0"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSettings, match=words):
        shards_of(Launcher(), **settings)
