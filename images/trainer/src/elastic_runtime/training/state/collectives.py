"""Collectives of the ranks of a world, without pickle.

Every function here is a collective: all ranks of the world must call it, in the same order.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

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
    """Whether ranks agree at each commit from now on."""


class Agreements:
    """Agreements of the ranks of a world, at the commits at which its engine has them agree, or at each.

    Args:
        world: the one that this process is in, whichever that is.
        always: whether they have to at each.
    """

    def __init__(self, world: World, *, always: bool) -> None:
        self._world, self._must, self._always = world, always, always

    def due(self) -> bool:
        """Whether to agree at the commit that begins with this call, on all ranks."""
        return self._world.agrees() or self._always

    def agree(self, mine: Signals) -> Signals:
        """The maximum over all ranks, the same everywhere: one collective of six numbers."""
        if self._world.size == 1:
            return mine
        flags = mine.stand, mine.always or self._must
        numbers = mine.updated, mine.seen, mine.write, float(mine.handover), *(float(flag) for flag in flags)
        updated, seen, write, handover, stand, always = self._world.maximum(numbers)
        self._always = bool(always)
        return Signals(updated, seen, int(handover), bool(stand), write, self._always)


def broadcast_tree(world: World, family: Family, tree: Tree) -> Tree:
    """Rank 0's tree on every rank.

    On rank 0 it is the argument itself, unchanged. Elsewhere each tensor of the argument that fits the one at the same
    path of rank 0's tree is overwritten in place and returned, so that a model's ``state_dict`` arrives without a
    second copy. A tensor at another path, or one that shares memory with one before it, is never received into.
    """
    if world.size == 1:
        return tree
    if world.rank == 0:
        broadcast_bytes(world, family, outline(family, tree))
        world.broadcast([family.sendable(tensor) for tensor in tensors_of(family, tree)])
        return tree
    outlined, likes = family.from_outline(broadcast_bytes(world, family, b""))
    mine, taken = tensors_by_path(family, tree), _Taken()
    targets = []
    for path, like in zip(tensors_by_path(family, outlined), likes, strict=True):
        target = family.target(mine.get(path), like)
        targets.append(target if taken.take(*family.memory(target)) else family.target(None, like))
    world.broadcast(targets)
    remaining = iter(targets)
    return map_tensors(family, lambda _: next(remaining), outlined)


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
