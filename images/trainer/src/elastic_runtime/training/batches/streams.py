"""Shards of which nobody knows yet how many there will be: a stream, or a folder into which files arrive."""

from __future__ import annotations

import fnmatch
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.run.waits import LONGEST_BUSY
from elastic_runtime.script.standing import busy
from elastic_runtime.training.batches.taking import Counter, Shard, ShardStep
from elastic_runtime.world import World

Stream = Callable[[], tuple[int, bool]]
"""Returns how many shards there are so far, and whether there will be no more. A shard keeps its number."""
POLL = 0.2
"""Seconds between two looks at a stream that has too few."""


class Folder:
    """A stream of the files that arrive in a folder, in the order of their names.

    Write a file elsewhere, or under a name that begins with a dot, and rename it when it is complete. Names must sort
    in the order of arrival, as time stamps and numbers of equal length do. Files must stay.

    Args:
        path: Folder, which all ranks see. It may not exist yet.
        pattern: Names that count, as in a shell: ``"*.parquet"``.
        end: Name of the file that says that no more will come.
    """

    def __init__(self, path: str | os.PathLike[str], pattern: str = "*", end: str = "_SUCCESS") -> None:
        self._path, self._pattern, self._end = Path(path), pattern, end
        self._names: list[str] = []

    def __call__(self) -> tuple[int, bool]:
        """Look again.

        Raises:
            InvalidSettings: a file has gone, or sorts before one that was there already.
        """
        ended = (self._path / self._end).exists()  # Before the files: one may arrive in between.
        listed = os.listdir(self._path) if self._path.exists() else []
        names = sorted(each for each in fnmatch.filter(listed, self._pattern) if each[0] != "." and each != self._end)
        if names[: len(self._names)] != self._names:
            changed = sorted(set(names) ^ set(self._names))
            problem = f"{changed[0]!r:.200} has gone from {self._path}, or sorts before files that were there already"
            raise InvalidSettings("Folder", problem, "Leave the files there, and give them names in their order")
        self._names = names
        return len(names), ended

    def name(self, index: int) -> str:
        """Return the path of that file."""
        return str(self._path / self._names[index])


@dataclass(frozen=True, slots=True)
class Given:
    """Which shards are in a state: a plain attribute of it, so that it is in each commit and checkpoint."""

    count: int = 0
    """Shards that were given to ranks, from the first on."""
    name: str = ""
    """Of the last of them, if they have names: a folder in which another was put before it is found by this."""
    left: tuple[int, ...] = ()
    """Numbers of those before ``count`` that are not in the state: ranks that had them were lost."""

    @classmethod
    def of(cls, state: Any, attribute: str) -> Given:
        """Raises InvalidSettings if the state has none."""
        value = getattr(state, attribute, None)
        match value:
            case []:
                return cls()
            case [int(count), str(name), *left] if all(type(each) is int for each in left):
                return cls(count, name, tuple(left))
        problem = f"the state's attribute {attribute!r} is {value!r:.60}, not a position in the shards"
        raise InvalidSettings("Shards.state", problem, f"Make the state with {attribute}=[]")

    def put(self, state: Any, attribute: str) -> None:
        """Set the attribute."""
        setattr(state, attribute, [self.count, self.name, *self.left])


@dataclass(slots=True)
class Supply:
    """Shards that there are: of a stream so many as all ranks see, else a number that is known."""

    stream: Stream | None
    """None: ``count`` is all."""
    count: int
    state: Any
    every: float
    """Seconds for which a step waits for more shards, if there are any."""
    shard: Callable[[int], Shard]
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = field(default=time.sleep)

    def seen(self, world: World, had: int, least: int) -> tuple[int, bool]:
        """Return how many shards all ranks see, and whether there will be no more. A collective for a stream.

        It waits until there are ``least`` more than ``had``, or after ``every`` seconds any, or the stream has ended.
        While there is none, all ranks commit after ``every`` seconds, so that their world can change.

        Raises:
            InvalidSettings: on all ranks, if there are fewer than ``had`` for so long.
        """
        if self.stream is None:
            return self.count, True
        while True:
            begun = self.clock()
            with busy("waits for shards of a stream", at_most=LONGEST_BUSY):
                while True:
                    count, ended = self.stream()
                    seen = world.maximum([-float(count), -float(ended), self.clock() - begun])
                    count, ended, is_due = -int(seen[0]), seen[1] < 0, seen[2] >= self.every
                    if count - had >= least or ended or is_due:
                        break
                    self.sleep(POLL)
            if count < had:
                problem = f"the stream has {count} shards, and {had} were trained on"
                raise InvalidSettings(
                    "Shards.stream", problem, "Leave a stream's shards as they are, and add at its end"
                )
            if count > had or ended:
                return count, ended
            self.state.commit()

    def check(self, given: Given) -> None:
        """Raises InvalidSettings if the stream is not the one of which shards were given."""
        if given.count and given.name != (name := self.shard(given.count - 1).name):
            problem = f"shard {given.count - 1} was {given.name!r:.200}, and is {name!r:.200} now"
            raise InvalidSettings("Shards.stream", problem, "Leave a stream's shards as they are, and add at its end")


@dataclass(frozen=True, slots=True)
class StreamSteps:
    """Steps of ranks that train on a stream together."""

    supply: Supply
    counter: Counter
    world: Callable[[], World]
    step: Callable[[], int]
    move_to: Callable[[int], None]
    attribute: str
    per_step: int

    def __iter__(self) -> Iterator[ShardStep]:
        while True:
            world, number, given = self.world(), self.step() + 1, Given.of(self.supply.state, self.attribute)
            seen, ended = self.supply.seen(world, given.count, self.per_step)
            self.supply.check(given)
            numbers = range(given.count, min(seen, given.count + self.per_step))
            if not numbers:
                return
            names = [self.supply.shard(each).name for each in numbers]
            taking, ends = self.counter.taking(number, names, world), ended and numbers.stop == seen
            step = ShardStep(number, numbers, taking, self.supply.shard, ends_epoch=ends)
            self.move_to(number)
            Given(numbers.stop, names[-1]).put(self.supply.state, self.attribute)
            yield step
            step.check_over()
