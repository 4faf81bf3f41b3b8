"""Ranks that do not wait for each other: each shard is once in what is committed, and a loss costs the lost rank's."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime import Shards
from elastic_runtime.errors import InvalidSettings
from elastic_runtime.launcher.decision.shard_queues import ShardQueues
from elastic_runtime.protocol.shards import ShardGiven, ShardWanted
from tests.unit.runtime.rounds_bench import Launcher, Rank, WorldLost, train_disturbed, train_in_one_world

WANTED = ShardWanted("step", "digest", step=1, size=10, number=0, seconds=5.0)


@given(st.randoms(use_true_random=True), st.integers(1, 40), st.integers(1, 3), st.integers(0, 6))
def test_each_shard_is_committed_once_whatever_is_lost(rng: Random, count: int, epochs: int, disturbances: int) -> None:
    every = rng.choice([0.5, 2.0, 10.0])
    committed = train_disturbed(rng, {"count": count, "epochs": epochs, "every": every}, disturbances)
    assert committed["counts"] == dict.fromkeys(range(count), epochs)
    assert committed["shards"] == [count * epochs, ""]


def test_a_lost_rank_costs_only_its_own_shards_since_the_last_meeting() -> None:
    launcher = Launcher(Random(1))
    ranks = [Rank(name, launcher, {"count": 40, "every": 6.0}) for name in "abc"]
    lost, others = ranks[0], ranks[1:]
    lost.dies_after = lambda: launcher.now > 10.0 and lost.apart > 0
    assert not train_in_one_world(launcher, ranks, lost.committed)
    assert lost.is_lost
    assert lost.committed["step"] == others[0].committed["step"] == 1
    assert others[0].apart + others[1].apart > 1

    assert train_in_one_world(launcher, others, others[0].committed)

    assert others[0].committed["counts"] == dict.fromkeys(range(40), 1)
    assert sum(rank.trained for rank in ranks) == 40 + lost.apart


def test_a_fast_rank_does_not_wait_for_a_slow_one_s_part() -> None:
    queues = ShardQueues()
    assert queues.take(1, "slow", WANTED, 0.0).position == 0
    fast = [queues.take(1, "fast", _with(number=number), number).position for number in range(6)]
    assert fast == [1, 2, 3, 4, 5, None]
    assert queues.take(1, "slow", _with(number=1), 5.5) == ShardGiven(0, given=6)
    assert queues.take(1, "fast", _with(step=2), 6.0).position == 0


def test_a_round_ends_when_its_world_is_broken() -> None:
    queues = ShardQueues()
    queues.take(1, "a", WANTED, 0.0)
    assert queues.take(1, "a", _with(number=1), 1.0, broken=True) == ShardGiven(0, given=1)
    assert queues.take(1, "b", WANTED, 1.0) == ShardGiven(0, given=1)


def test_by_hand_ranks_share_a_round() -> None:
    shards = alone(5)
    seen = []
    for round_ in shards:
        seen += [shard.index for shard in round_]
        assert round_.meet() == round_.meet() == 1.0
    assert seen == [0, 1, 2, 3, 4]
    assert shards.state.shards == [5, ""]


class Weights:
    """As a model of Keras has them."""

    def __init__(self) -> None:
        self.value = [0]

    def get_weights(self) -> list[int]:
        return self.value

    def set_weights(self, value: list[int]) -> None:
        self.value = value


def test_what_a_rank_has_is_put_back_in_the_next_world() -> None:
    model, lost = Weights(), True

    def maximum(numbers: list[float]) -> list[float]:
        if lost and model.value != [0]:
            raise WorldLost
        return numbers

    shards = alone(5, maximum, local=[model])
    round_ = next(iter(shards))
    model.value = [len(list(round_))]
    with pytest.raises(WorldLost):
        round_.meet()
    model.value, lost, shards.state.step = [7], False, 0

    for round_ in shards:
        assert list(round_) == []
        assert (round_.taken, round_.meet()) == (5, 1.0)
    assert model.value == [5]
    assert (shards.state.step, shards.state.shards) == (1, [5, ""])


@pytest.mark.parametrize("met", [False, True])
def test_a_round_without_a_meeting_is_refused(met: bool) -> None:
    rounds = iter(alone(3))
    round_ = next(rounds)
    if met:
        with pytest.raises(InvalidSettings, match="left before its end"):
            round_.meet()
    assert len(list(round_)) == 3
    with pytest.raises(InvalidSettings, match="have not met at the end of step 1"):
        next(rounds)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mode": "apart"}, "Shards.mode: 'apart' is not a mode"),
        ({"per_step": 4}, "Give every instead"),
        ({"every": 61}, "Shards.every: 61 is not a time from 0 to 60 s"),
        ({"lease": -1}, "Shards.lease"),
        ({"lease": True}, "Shards.lease"),
        ({"local": [1]}, "a int has neither load_state_dict nor set_weights"),
        ({"local": []}, "Give the state a model"),
        ({"local": None}, "Give the state a model"),
        ({"state": SimpleNamespace(step=0)}, r"Make the state with shards=\[\]"),
        ({"state": SimpleNamespace(step=0, shards=[1, 2])}, "not a position in the shards"),
        ({"state": SimpleNamespace(other=0), "position": "other"}, r"Make the state with other_shards=\[\]"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    state = SimpleNamespace(step=0, shards=[])
    given_ = {"count": 6, "mode": "asynchronous", "state": state, "local": [Weights()], "world": None}
    with pytest.raises(InvalidSettings, match=words):
        Shards(**{**given_, **settings})


def test_their_number_of_steps_is_not_known() -> None:
    with pytest.raises(TypeError):
        len(alone(3))


def alone(count: int, maximum: Callable[[list[float]], list[float]] = list, **settings: Any) -> Shards:
    """Of a rank that was started by hand."""
    seat: Any = SimpleNamespace(rank=0, size=1, maximum=maximum)
    link: Any = SimpleNamespace(had_agent=False)
    state = SimpleNamespace(step=0, shards=[], model=Weights())
    return Shards(count, mode="asynchronous", shuffle=False, state=state, world=seat, link=link, **settings)


def _with(**changes: Any) -> ShardWanted:
    return ShardWanted(**{**{name: getattr(WANTED, name) for name in WANTED.__slots__}, **changes})
