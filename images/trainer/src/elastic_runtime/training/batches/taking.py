"""Shards that this rank takes of one step: from the launcher, or by hand an even part."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.protocol.rank_link import RankLink
from elastic_runtime.protocol.shards import ShardWanted
from elastic_runtime.script.standing import ledger
from elastic_runtime.training.batches import plan
from elastic_runtime.training.batches.plan import Indices
from elastic_runtime.world import Place


@dataclass(frozen=True, slots=True)
class Shard:
    """One part of the data set."""

    index: int
    """Number in the data set, from 0."""
    name: str
    """Of ``names``, or of the stream; empty without them."""
    count: int
    """Shards of the data set; 0: a stream, of unknown length."""

    def samples(self, total: int) -> range:
        """Return this shard's samples of a data set of so many; sizes of shards differ by 1 at most.

        Raises:
            InvalidSettings: it is of a stream.
        """
        if not self.count:
            raise InvalidSettings("Shard.samples", "a stream has no length", "Compute them from shard.index")
        own = plan.share(total, self.index, self.count)
        return range(own.start, own.stop)


@dataclass(frozen=True, slots=True)
class Counter:
    """Where this rank asks for shards."""

    link: RankLink
    stream: str
    """Name of the attribute that counts the steps."""
    digest: str
    """Of the settings and names, the same on all ranks."""
    lease: float
    """Seconds that a rank has for one shard; 0: no limit."""
    clock: Callable[[], float] = time.monotonic
    """Seconds."""

    def taking(self, step: int, shards: Sequence[str], place: Place, seconds: float | None = None) -> Taking:
        """Return what gives this rank its shards of a step.

        Args:
            step: from 1.
            shards: names of the step's shards, which ranks are to have alike; empty texts where they have none.
            place: this rank's.
            seconds: as :class:`~elastic_runtime.protocol.shards.ShardWanted` has it.
        """
        digest = self.digest
        if any(shards):
            digest = hashlib.sha256("\n".join((digest, *shards)).encode()).hexdigest()[:32]
        return Taking(self, ShardWanted(self.stream, digest, step, len(shards), 0, 0, seconds, self.lease), place)


class Taking:
    """Gives this rank its shards of one step, as positions in it."""

    def __init__(self, counter: Counter, first: ShardWanted, place: Place) -> None:
        self._counter, self._first, self._place = counter, first, place
        self._begun = counter.clock()
        self.given = 0
        """Once it is over: shards that ranks have got, from position 0 on, as far as this rank has been told."""

    def take(self, number: int) -> int | None:
        """Return the shard of a number, from 0. None: there is no more for this rank.

        Raises:
            InvalidSettings: it is refused.
        """
        if not self._counter.link.had_agent:
            return self._divided(number)
        answer = self._counter.link.take_shard(replace(self._first, number=number))
        if answer.refused:
            remedy = "Iterate over each step once, to its end, with the same shards on all ranks"
            raise InvalidSettings("Shards", answer.refused, remedy)
        self.given = answer.given
        return answer.position

    def _divided(self, number: int) -> int | None:
        size, place = self._first.size, self._place
        if self._first.seconds is None:
            own = range(size)[plan.share(size, place.rank, place.size)]
            return own[number] if number < len(own) else None
        position = place.rank + number * place.size
        if position >= size or self._counter.clock() - self._begun >= self._first.seconds:
            self.given = min(size, max(0, position - place.size + 1))
            return None
        return position


class ShardStep(Iterator[Shard]):
    """Shards of one global step that this rank gets, one after the other: iterate to the end.

    A rank may get all of them, or none.
    """

    def __init__(
        self,
        step: int,
        of_step: Sequence[int] | Indices,
        taking: Taking,
        shard: Callable[[int], Shard],
        *,
        epoch: int = 0,
        ends_epoch: bool = False,
    ) -> None:
        self.step = step
        """Global step, from 1. ``state.step`` has the same value while it is worked on."""
        self.epoch = epoch
        """From 0."""
        self.ends_epoch = ends_epoch
        """Whether it is the last one of its epoch."""
        self.size = len(of_step)
        """Shards of the step, over all ranks."""
        self.taken = 0
        """Shards that this rank has got so far."""
        self.is_over = False
        """Whether this rank gets no more of the step's shards."""
        self._of_step, self._taking, self._shard = of_step, taking, shard
        self._begun, self._process = ledger().begun, os.getpid()

    def __next__(self) -> Shard:
        if self._process != os.getpid():
            raise InvalidSettings("Shards", "a worker process of a loader iterates over them", "Set num_workers=0")
        if self._begun != ledger().begun:
            problem = f"the state was committed before all shards of step {self.step} were trained on"
            raise InvalidSettings("Shards", problem, "Commit after the loop over a step, not in it")
        position = None if self.is_over else self._taking.take(self.taken)
        if position is None:
            self.is_over = True
            raise StopIteration
        self.taken += 1
        self._took(position)
        return self._shard(int(self._of_step[position]))

    def _took(self, position: int) -> None:
        """For steps that keep them."""

    def renew(self) -> None:
        """Begin the lease of the present shard anew.

        Raises:
            InvalidSettings: the lease is over, and others get the shard.
        """
        if self.taken and not self.is_over:
            self._taking.take(self.taken - 1)

    def check_over(self) -> None:
        """Raises InvalidSettings if the loop over the step was left before its end."""
        if not self.is_over:
            problem = f"the loop over step {self.step} was left before its end, so shards may be in no step"
            raise InvalidSettings("Shards", problem, "Iterate over each step until it ends, also for the last")
