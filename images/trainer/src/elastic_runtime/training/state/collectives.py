"""What the ranks of a world tell each other, without pickle.

Every function here is a collective: all ranks of the world must call it, in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass

from elastic_runtime.training.family import Family, Tree
from elastic_runtime.training.trees import map_tensors, tensors_of
from elastic_runtime.world import World


@dataclass(frozen=True, slots=True)
class Signals:
    """What a rank has heard, and after :meth:`Agreements.agree`, what any rank has."""

    updated: float = 0.0
    """Time stamp of the newest notification that hosts have changed, 0 for none."""
    seen: float = 0.0
    """Time stamp up to which notifications were acted upon."""
    handover: bool = False
    """Whether a durable checkpoint is wanted now."""
    stand: bool = False
    """Whether to wait at this commit, for it is the last one that can be made durable."""
    write: float = 0.0
    """Of a state of which each rank has a part: above 0, whether all are to write this commit."""
    always: bool = False
    """Whether ranks agree at each commit from now on."""


class Agreements:
    """Of the ranks of a world, at the commits at which its engine has them agree, or at each.

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
        flags = mine.handover, mine.stand, mine.always or self._must
        numbers = mine.updated, mine.seen, mine.write, *(float(flag) for flag in flags)
        updated, seen, write, handover, stand, always = self._world.maximum(numbers)
        self._always = bool(always)
        return Signals(updated, seen, bool(handover), bool(stand), write, self._always)


def broadcast_tree(world: World, family: Family, tree: Tree) -> Tree:
    """Rank 0's tree on every rank.

    On rank 0 it is the argument itself, unchanged. Elsewhere tensors of the argument that fit are overwritten in place
    and returned, so that a model's ``state_dict`` arrives without a second copy.
    """
    if world.size == 1:
        return tree
    mine = tensors_of(family, tree)
    if world.rank == 0:
        _broadcast_bytes(world, family, family.outline(tree))
        world.broadcast([family.sendable(tensor) for tensor in mine])
        return tree
    outlined, likes = family.from_outline(_broadcast_bytes(world, family, b""))
    targets = [family.target(mine[at] if at < len(mine) else None, like) for at, like in enumerate(likes)]
    world.broadcast(targets)
    remaining = iter(targets)
    return map_tensors(family, lambda _: next(remaining), outlined)


def _broadcast_bytes(world: World, family: Family, data: bytes) -> bytes:
    size = bytearray(len(data).to_bytes(8, "little"))
    world.broadcast([family.over(size)])
    content = bytearray(data or int.from_bytes(size, "little"))
    world.broadcast([family.over(content)])
    return bytes(content)
