"""Shards for ranks that do not wait for each other: each trains by itself, and now and then they meet.

At a meeting, ranks average what they have learned, and commit. What a rank has at the end of its round is kept outside
of the state. So if another rank is lost, the others lose nothing: they meet again in the next world, with what they
have. Which shards are in the state is written there, and those of the lost rank are in a later round.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.protocol.shards import MOST_SHARDS
from elastic_runtime.training.batches.streams import Given, Supply
from elastic_runtime.training.batches.taking import Counter, Shard, ShardStep, Taking
from elastic_runtime.world import World


@dataclass(frozen=True, slots=True)
class Kept:
    """What this rank has at the end of a round that was not committed."""

    step: int
    positions: tuple[int, ...]
    """Of its shards in the round."""
    given: int
    """As :attr:`.ShardGiven.given`."""
    local: tuple[Any, ...]
    """Copies of what it has learned."""


class Round(ShardStep):
    """Shards that this rank gets from one meeting to the next: iterate to the end, call :meth:`meet`, and commit.

    After a rank was lost, the first round of the others has no shards. They have what they had before instead.
    """

    def __init__(
        self,
        step: int,
        of_step: Sequence[int],
        taking: Taking,
        shard: Callable[[int], Shard],
        meet: Callable[[Round], int],
        kept: Kept | None,
    ) -> None:
        super().__init__(step, of_step, taking, shard)
        self._meet, self._met = meet, False
        self.kept = kept
        self.positions = list(kept.positions) if kept else []
        """Of this rank's shards."""
        self.taken = len(self.positions)
        self.is_over = not of_step

    def _took(self, position: int) -> None:
        self.positions.append(position)

    @property
    def given(self) -> int:
        """Return how many positions ranks have got, as far as this rank knows."""
        return self.kept.given if self.kept else self._taking.given

    def meet(self) -> float:
        """Wait for the other ranks, and return this rank's part of all shards of the round, 0 to 1.

        Multiply each of the model's tensors by it, and add them up over all ranks; then commit. A collective. From then
        on ``size`` is the round's number of shards, and the state says which these are.

        Raises:
            InvalidSettings: the round is not over.
        """
        self.check_over()
        if not self._met:
            self.size = self._meet(self)
            self._met = True
        return self.taken / self.size if self.size else 0.0

    def check_met(self) -> None:
        """Raises InvalidSettings if ranks have not met."""
        self.check_over()
        if not self._met:
            remedy = "Call meet() after the loop over it, average, and commit"
            raise InvalidSettings("Shards", f"the ranks have not met at the end of step {self.step}", remedy)


@dataclass(slots=True)
class Rounds:
    """Rounds of a training, in one world after another. One object for all worlds, for it keeps what a rank has."""

    supply: Supply
    counter: Counter
    world: Callable[[], World]
    step: Callable[[], int]
    move_to: Callable[[int], None]
    attribute: str
    local: Sequence[Any]
    """What ranks average: each with ``state_dict`` and ``load_state_dict``, or ``get_weights`` and ``set_weights``."""
    kept: Kept | None = None

    def __iter__(self) -> Iterator[Round]:
        while (begun := self._begin()) is not None:
            yield begun
            begun.check_met()

    def _begin(self) -> Round | None:
        """Return the next round. None: all shards are in the state. A collective."""
        number, world = self.step() + 1, self.world()
        if self.kept and self.kept.step != number:  # It was committed, or all ranks go on from an older checkpoint.
            self.kept = None
        numbers: Sequence[int] = ()
        if not world.maximum([float(self.kept is not None)])[0]:
            numbers = self._numbers(world)
            if not numbers:
                return None
        elif self.kept:
            for each, value in zip(self.local, self.kept.local, strict=True):
                _load(each, value)
        names = [self.supply.shard(each).name for each in numbers] if self.supply.stream else [""] * len(numbers)
        taking = self.counter.taking(number, names, world, self.supply.every)
        self.move_to(number)
        return Round(number, numbers, taking, self.supply.shard, self._meet, self.kept)

    def _numbers(self, world: World) -> Sequence[int]:
        """Return those of the shards that are not in the state yet, the next first."""
        given = Given.of(self.supply.state, self.attribute)
        seen, _ = self.supply.seen(world, given.count - len(given.left), 1)
        self.supply.check(given)
        return [*given.left, *range(given.count, seen)][:MOST_SHARDS]

    def _meet(self, met: Round) -> int:
        """Return how many shards are in this meeting, and write into the state which. A collective."""
        if met.positions and met.kept is None:
            self.kept = Kept(met.step, tuple(met.positions), met.given, tuple(map(_copy, self.local)))
        world, before, mine = self.world(), Given.of(self.supply.state, self.attribute), set(met.positions)
        given = int(world.maximum([float(met.given)])[0])
        is_in = world.maximum([float(each in mine) for each in range(given)]) if given else []
        count = before.count + max(0, given - len(before.left))
        numbers = [*before.left, *range(before.count, count)]
        left = [number for number, trained in zip_longest(numbers, is_in) if not trained]
        name = self.supply.shard(count - 1).name if count else ""
        Given(count, name, tuple(left)).put(self.supply.state, self.attribute)
        return int(sum(is_in))


def _copy(value: Any) -> Any:
    return copy.deepcopy(value.state_dict() if hasattr(value, "state_dict") else value.get_weights())


def _load(value: Any, kept: Any) -> None:
    if hasattr(value, "load_state_dict"):
        value.load_state_dict(kept)
    else:
        value.set_weights(kept)
