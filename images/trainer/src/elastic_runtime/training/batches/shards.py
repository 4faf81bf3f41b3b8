"""Shards of a data set for whichever rank is free, and each of them once in what is committed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.protocol.rank_link import RankLink, shared_link
from elastic_runtime.protocol.shards import MOST_SHARDS, ShardWanted
from elastic_runtime.script.standing import ledger
from elastic_runtime.training.batches import plan
from elastic_runtime.training.batches.position import BatchPosition, Shares
from elastic_runtime.world import Place

MOST = 100_000_000
"""Shards of a data set: an epoch's order takes 8 bytes of memory for each."""
_MAX_SEED = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Shard:
    """One part of the data set."""

    index: int
    """Number in the data set, from 0."""
    name: str
    """Of ``names``; empty without them."""
    count: int
    """Shards of the data set."""

    def samples(self, total: int) -> range:
        """Return this shard's samples of a data set of so many; sizes of shards differ by 1 at most."""
        own = plan.share(total, self.index, self.count)
        return range(own.start, own.stop)


class ShardStep(Iterator[Shard]):
    """Shards of one global step that this rank gets, one after the other: iterate to the end.

    A rank may get all of them, or none.
    """

    def __init__(self, shards: Shards, step: int, take: Callable[[int], int | None]) -> None:
        self.step = step
        """Global step, from 1. ``state.step`` has the same value while it is worked on."""
        self.epoch, position = divmod(step - 1, shards.plan.steps_per_epoch)
        """From 0."""
        self.ends_epoch = position == shards.plan.steps_per_epoch - 1
        """Whether it is the last one of its epoch."""
        self._shards, self._of_step, self._take = shards, shards.plan.batch(step), take
        self.size = len(self._of_step)
        """Shards of the step, over all ranks."""
        self.taken = 0
        """Shards that this rank has got so far."""
        self.is_over = False
        """Whether ranks have got all of the step's shards."""
        self._begun, self._process = ledger().begun, os.getpid()

    def __next__(self) -> Shard:
        if self._process != os.getpid():
            raise InvalidSettings("Shards", "a worker process of a loader iterates over them", "Set num_workers=0")
        if self._begun != ledger().begun:
            problem = f"the state was committed before all shards of step {self.step} were trained on"
            raise InvalidSettings("Shards", problem, "Commit after the loop over a step, not in it")
        position = None if self.is_over else self._take(self.taken)
        if position is None:
            self.is_over = True
            raise StopIteration
        self.taken += 1
        return self._shards.shard(int(self._of_step[position]))


class Shards(BatchPosition):
    """Iterate over a training's steps, each of ``per_step`` shards, which ranks get as they ask for them.

    A fast rank gets more of a step's shards than a slow one. All ranks add up what they have learned, and commit once a
    step::

        shards = Shards(10_000, per_step=16, seed=0, state=state, epochs=3)
        for step in shards:
            for shard in step:
                (loss_of(read(shard)) / step.size).backward()
            add_up_gradients()
            optimizer.step()
            state.commit()

    Step *s* has the same shards at any world size. The position is an attribute of the state, as for ``GlobalBatches``.
    So a commit covers exactly the shards of its steps, and a rank that is lost leaves none out: the others return to
    the last commit and repeat the step.

    Without a launcher, as by hand, ranks divide each step evenly.

    Args:
        count: Shards of the data set, up to 100 million. None: as many as ``names``.
        names: A name for each shard, such as files' paths, in the same order on all ranks.
        per_step: Shards of a step over all ranks, up to 100,000. Use several for each rank.
        seed: 0 to 2**63 - 1.
        state: A ``DurableState``, or any elastic state with ``step=0``.
        epochs: Number of passes over the shards.
        shuffle: Use a new order in each epoch.
        position: Name of the state's attribute that counts the steps.
        world: World with this rank and its size. None: the engine's.
        link: Link to the agent. None: from the environment.

    Raises:
        InvalidSettings: an argument is invalid. While iterating: a commit within a step, a step that was left before
            its end, or ranks with different shards.
    """

    counts_samples = False

    def __init__(
        self,
        count: int | None = None,
        *,
        names: Sequence[str] | None = None,
        per_step: int,
        seed: int,
        state: Any,
        epochs: int = 1,
        shuffle: bool = True,
        position: str = "step",
        world: Place | None = None,
        link: RankLink | None = None,
    ) -> None:
        if names is not None:
            names = _checked(names)
        if (count is None) == (names is None):
            raise InvalidSettings("Shards", "there is neither a count nor names, or both", "Give one of them")
        self._names = names
        count = len(names) if names is not None else _whole("count", count, MOST)
        per_step = min(_whole("per_step", per_step, MOST_SHARDS), count)
        seed, epochs = _whole("seed", seed, _MAX_SEED, 0), _whole("epochs", epochs, MOST)
        super().__init__(
            count, per_step, seed, state,
            epochs=epochs, shuffle=shuffle, drop_last=False, position=position, world=world,
        )  # fmt: skip
        self._link = link or shared_link()
        said = json.dumps([count, per_step, seed, shuffle, names])
        self._digest = hashlib.sha256(said.encode()).hexdigest()[:32]

    def __iter__(self) -> Iterator[ShardStep]:
        """From the step after :attr:`step`, in whichever world."""
        return self.through_worlds(self._in_world)

    def shard(self, index: int) -> Shard:
        """Return that shard of the data set."""
        return Shard(index, self._names[index] if self._names else "", self.plan.samples)

    def _in_world(self, shares: Shares) -> Generator[ShardStep, None, None]:
        for number in shares.steps:
            step = ShardStep(self, number, self._taking(number, shares))
            self.move_to(number)
            yield step
            if not step.is_over:
                problem = f"the loop over step {number} was left before its end, so shards may be in no step"
                raise InvalidSettings("Shards", problem, "Iterate over each step until it ends, also for the last")

    def _taking(self, step: int, shares: Shares) -> Callable[[int], int | None]:
        """Return what gives this rank its shard of a number, from 0, as a position in the step."""
        size = len(self.plan.batch(step))

        def divided(number: int) -> int | None:
            own = range(size)[plan.share(size, shares.rank, shares.ranks)]
            return own[number] if number < len(own) else None

        def from_launcher(number: int) -> int | None:
            given = self._link.take_shard(ShardWanted(self.position, self._digest, step, size, number))
            if given.refused:
                remedy = "Iterate over each step once, to its end, with the same shards on all ranks"
                raise InvalidSettings("Shards", given.refused, remedy)
            return given.position

        return from_launcher if self._link.had_agent else divided


def _checked(names: object) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Sequence) or not 0 < len(names) <= MOST:
        raise InvalidSettings("Shards.names", f"{names!r:.60} is not a list of names", "Give a list of texts")
    for each in names:
        if not isinstance(each, str) or not each:
            raise InvalidSettings("Shards.names", f"{each!r:.60} is not a name", "Give texts that are not empty")
    return tuple(names)


def _whole(name: str, value: object, most: int, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        problem = f"{value!r:.60} is not a whole number from {least} to {most}"
        raise InvalidSettings(f"Shards.{name}", problem, "Give one")
    return value
