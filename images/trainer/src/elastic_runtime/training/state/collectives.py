"""Collectives of the ranks of a world, without pickle.

Every function here is a collective: all ranks of the world must call it, in the same order.
"""

from __future__ import annotations

import bisect
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

from elastic_runtime.training.family import Family, Tree
from elastic_runtime.training.trees import map_tensors, outline, tensors_by_path, tensors_of
from elastic_runtime.world import World


@dataclass(frozen=True, slots=True)
class Signals:
    """Signals that a rank has received, and after :meth:`Agreements.agree`, what any rank has."""

    updated: float = 0.0
    """Time stamp of the newest notification that hosts have changed, 0 for none."""
    seen: float = 0.0
    """Time stamp up to which notifications were acted upon."""
    handover: int = 0
    """Number of the newest notice for which a durable checkpoint is wanted now, 0 for none."""
    stand: bool = False
    """Whether to wait at this commit, for it is the last one that can be made durable."""
    write: float = 0.0
    """Whether all are to write this commit: above 0, for a state of which each rank has a part."""
    always: bool = False
    """Whether ranks commit, and agree, at each call from now on."""

    @property
    def asks(self) -> bool:
        """Whether they ask for a commit, the same on all ranks that have agreed on them."""
        return self.updated > self.seen or self.handover > 0 or self.write > 0 or self.always

    def and_then(self, later: Signals) -> Signals:
        """Return what ranks have agreed on at one call, first these and then others."""
        return replace(later, write=max(self.write, later.write))


class Agreements:
    """Agreements of the ranks of a world, at the commits at which its engine has them agree, or at each.

    Args:
        world: the one that this process is in, whichever that is.
        always: whether they have to at each.
    """

    def __init__(self, world: World, *, always: bool) -> None:
        self._world, self._must = world, always
        self.always = False
        """Whether they have agreed to commit at each call."""

    def due(self) -> bool:
        """Whether to agree at the call that begins now, on all ranks."""
        return self._world.agrees() or self._must or self.always

    def agree(self, mine: Signals) -> Signals:
        """The maximum over all ranks, the same everywhere: one collective of six numbers."""
        if self._world.size == 1:
            self.always = mine.always
            return mine
        flags = mine.stand, mine.always
        numbers = mine.updated, mine.seen, mine.write, float(mine.handover), *(float(flag) for flag in flags)
        updated, seen, write, handover, stand, always = self._world.maximum(numbers)
        self.always = bool(always)
        return Signals(updated, seen, int(handover), bool(stand), write, self.always)


class GivingWorld(World, Protocol):
    """A world whose engine knows which ranks came to it with the same state."""

    @property
    def alike(self) -> int:
        """So many, from rank 0 on; 0: not known."""

    def give(self, tensors: Sequence[Any]) -> None:
        """Overwrite these, contiguous and in host memory, on each other rank with those of one of them; a collective.

        Ranks that neither send nor receive any return at once.
        """


_COUNT = struct.Struct("<Q")
MOST_TAKERS = 2
"""Ranks that one is to send a state to, at most: else a broadcast, in which all pass it on, is faster."""


def broadcast_tree(world: World, family: Family, tree: Tree, replicated: Callable[[], Tree] = tuple) -> Tree:
    """Rank 0's tree on every rank.

    On rank 0 it is the argument itself, unchanged. Elsewhere each tensor of the argument that fits the one at the same
    path of rank 0's tree is overwritten in place and returned, so that a model's ``state_dict`` arrives without a
    second copy. A tensor at another path, or one that shares memory with one before it, is never received into.

    Args:
        world: the present one.
        family: whose tensors they are.
        tree: this rank's.
        replicated: what those ranks have alike whose states are the same (:attr:`GivingWorld.alike`), of this tree.
            They send its tensors to the others, and have the very ones of their own trees in the result.
    """
    if world.size == 1:
        return tree
    givers = _givers(world)
    if world.rank == 0:
        tensors = tensors_of(family, tree)
        alike = tensors_of(family, replicated()) if givers else []
        memory = {family.memory(each) for each in alike if family.in_host_memory(each)}
        given = bytes(family.memory(each) in memory for each in tensors)
        broadcast_bytes(world, family, _COUNT.pack(len(given)) + given + outline(family, tree))
        _distribute(world, [family.sendable(tensor) for tensor in tensors], given)
        return tree
    (count,) = _COUNT.unpack_from(said := broadcast_bytes(world, family, b""))
    given = said[_COUNT.size : _COUNT.size + count]
    outlined, likes = family.from_outline(said[_COUNT.size + count :])
    mine, taken = tensors_by_path(family, tree), _Taken()
    results, targets = [], []
    for path, like, is_given in zip(tensors_by_path(family, outlined), likes, given, strict=True):
        if is_given and world.rank < givers:
            results.append(mine[path])
            targets.append(family.sendable(mine[path]))
            continue
        target = family.target(mine.get(path), like)
        target = target if taken.take(*family.memory(target)) else family.target(None, like)
        results.append(target)
        targets.append(target)
    _distribute(world, targets, given)
    remaining = iter(results)
    return map_tensors(family, lambda _: next(remaining), outlined)


def _givers(world: World) -> int:
    """So many ranks, from 0 on, are to send what they have alike to the others; 0: rank 0 sends all of it to all."""
    alike = getattr(world, "alike", 0)
    return alike if 0 < alike < world.size <= (1 + MOST_TAKERS) * alike else 0


def _distribute(world: World, tensors: Sequence[Any], given: bytes) -> None:
    world.broadcast([tensor for tensor, is_given in zip(tensors, given, strict=True) if not is_given])
    if alike := [tensor for tensor, is_given in zip(tensors, given, strict=True) if is_given]:
        cast(GivingWorld, world).give(alike)


class _Taken:
    """Pieces of memory that do not overlap."""

    def __init__(self) -> None:
        self._ends: list[tuple[int, int]] = []
        """End and start of each, sorted."""

    def take(self, start: int, end: int) -> bool:
        """Take a piece; returns whether it was free."""
        if start == end:
            return True
        at = bisect.bisect_left(self._ends, (start + 1, 0))  # The first that ends after this one starts.
        if at < len(self._ends) and self._ends[at][1] < end:
            return False
        self._ends.insert(at, (end, start))
        return True


def broadcast_bytes(world: World, family: Family, data: bytes) -> bytes:
    """Rank 0's; the others give nothing. A collective."""
    size = bytearray(len(data).to_bytes(8, "little"))
    world.broadcast([family.over(size)])
    content = bytearray(data or int.from_bytes(size, "little"))
    world.broadcast([family.over(content)])
    return bytes(content)
