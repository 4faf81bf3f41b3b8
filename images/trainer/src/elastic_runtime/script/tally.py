"""What this rank has begun in its world, told at commits, for the launcher to find a rank that does not do the same.

All ranks tell of the same commits, about one a second, and nobody waits for it. Counting happens in the middle of the
training, and costs less than a microsecond a collective. What was begun last is kept in its order, so that the launcher
can name the first collective that differs.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary
from zlib import crc32

from elastic_runtime.protocol.tallies import COMMIT, IN_GROUP, MARKS, MAX_KINDS, MAX_TAIL, OTHER, Tally

EVERY = 1.0
"""Seconds between two commits that are told, at least; four times as many at most, unless commits are rarer."""
OTHERS = "others"
"""Kind of the collectives that are not of the first :data:`.MAX_KINDS`; of groups likewise."""
_KEPT = 1024
"""Kinds whose digests are kept."""
_PRIME, _BITS = 1_000_003, 0xFFFFFFFF


MAX_GROUPS = 16
"""Groups of all ranks whose orders are told from each other."""


class _Kind(NamedTuple):
    """Of collectives, in a group."""

    group: str
    digest: int
    mark: str
    times: list[int]


class Counts:
    """Counted by an engine's hooks, since this rank was connected to its world."""

    def __init__(self) -> None:
        self.total: Callable[[], int | None] = lambda: None
        """Returns how many collectives this rank has begun in the usual group. Where the engine cannot say: None."""
        self.beside: Callable[[], int] = lambda: 0
        """Returns how many it has begun in other groups of all ranks."""
        self.ordered = False
        """Whether ranks begin their collectives in the same order."""
        self.connected()

    def connected(self) -> None:
        """This rank is in another world."""
        self._kinds: dict[Any, _Kind] = {}
        """The first are told."""
        self._others = [0]
        self.begun = 0
        """How many collectives were counted here."""
        self._orders: dict[str, int] = {}
        """By group: threads may use several."""
        self._commits, self._tail = 0, deque[str](maxlen=MAX_TAIL)
        self._steps: WeakKeyDictionary[object, int] = WeakKeyDictionary()
        self._steps_before: int | None = None
        self._compared = True

    def begins(self, *kind: object) -> None:
        """This rank begins a collective of all ranks.

        Args:
            kind: its group, empty for the usual one; its name; and where these are the same on all ranks, its type of
                numbers and how many there are.
        """
        group, digest, mark, times = self._kinds.get(kind) or self._new(kind)
        times[0] += 1
        self.begun += 1
        self._tail.append(mark)
        self._orders[group] = (self._orders.get(group, 0) * _PRIME + digest) & _BITS

    def _new(self, kind: tuple[Any, ...]) -> _Kind:
        count, digest = len(self._kinds), crc32(_text(kind).encode())
        group = kind[0] if kind[0] in self._orders or len(self._orders) < MAX_GROUPS else OTHERS
        told = count < MAX_KINDS - 1
        found = _Kind(group, digest, MARKS[count] if told else OTHER, [0] if told else self._others)
        if count < _KEPT:
            self._kinds[kind] = found
        return found

    def committed(self) -> None:
        """A commit was told of, or was not to be: what is begun now comes after it."""
        self._commits += 1
        self._tail.append(COMMIT)

    def stepped(self, optimizer: object) -> None:
        """An optimizer has made a step."""
        self._steps[optimizer] = self._steps.get(optimizer, 0) + 1

    def may_differ(self) -> None:
        """From now on and in this world, the script lets ranks do different things: it uses ``join``."""
        self._compared = False

    def tally(self, commit: int, step: int | None, kept: Iterable[object]) -> Tally:
        """Return what is told at a commit.

        Args:
            commit: its number in this world. The first one must be told: optimizers' steps count from there, since a
                new rank may have made one to give its optimizer a state.
            step: global step.
            kept: what the state keeps. Only its optimizers count: one rank may train something else.
        """
        if not self._compared:
            return Tally(commit)
        ours = {id(each) for each in kept}
        steps = sum(times for optimizer, times in self._steps.items() if id(optimizer) in ours)
        if self._steps_before is None:
            self._steps_before = steps
        kinds = {_text(kind): found.times[0] for kind, found in self._kinds.items() if found.mark != OTHER}
        if self._others[0]:
            kinds[OTHERS] = self._others[0]
        total = self.total()
        collectives = None if total is None else total + self.beside()
        told = Tally(commit, step, collectives, steps=steps - self._steps_before, kinds=kinds)
        if not self.ordered:
            return told
        order = 0
        for group, theirs in self._orders.items():
            order ^= crc32(f"{group} {theirs}".encode())
        return replace(told, order=order, marks=self.begun + self._commits, tail="".join(self._tail))


def _text(kind: tuple[Any, ...]) -> str:
    """Return ``all_reduce float32[1024]``, and the group if it is not the usual one."""
    group, name, *tensor = kind
    size = f" {str(tensor[0]).removeprefix('torch.')}[{tensor[1]}]" if tensor else ""
    return f"{name}{size}{IN_GROUP if group else ''}{group}"


class Stride:
    """Chooses the commits of a world that are told: those that a power of two divides, which follows their pace.

    Ranks commit at one pace, so their powers differ by a factor of two at most, and they tell of common commits.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._stride, self._last = clock, 1, clock()

    def due(self, commit: int) -> bool:
        """Whether the commit of this number, from 1, is told; asked in order."""
        if commit % self._stride:
            return False
        now = self._clock()
        since, self._last = now - self._last, now
        if since < EVERY:
            self._stride *= 2
        elif since > 4 * EVERY and self._stride > 1:
            self._stride //= 2
        return True
