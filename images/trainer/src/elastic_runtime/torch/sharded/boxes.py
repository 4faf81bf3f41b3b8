"""Which part of each tensor lies on which rank, and what is to be sent so that it lies otherwise: without a tensor.

Whatever way a tensor is sharded, a rank has a *box* of it: a range of indices in each dimension. Ranks that have the
same box are replicas, and boxes that differ do not overlap, since all are of one layout of one world.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Key = tuple[int, int]
"""Of a version: the number of its commit, and of the layout that it was kept in; both grow."""


@dataclass(frozen=True, slots=True)
class Box:
    """A part of a tensor."""

    offset: tuple[int, ...]
    """First index in each dimension."""
    shape: tuple[int, ...]

    @property
    def volume(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)

    def common(self, other: Box) -> Box | None:
        """Return the intersection of two boxes. None: it is empty."""
        starts = tuple(map(max, self.offset, other.offset))
        mine, others = (map(sum, zip(each.offset, each.shape, strict=True)) for each in (self, other))
        shape = tuple(end - start for start, end in zip(starts, map(min, mine, others), strict=True))
        return Box(starts, shape) if all(length > 0 for length in shape) else None

    def within(self, outer: Box) -> tuple[slice, ...]:
        """Its indices in a tensor that is that box."""
        starts = (mine - other for mine, other in zip(self.offset, outer.offset, strict=True))
        return tuple(slice(start, start + length) for start, length in zip(starts, self.shape, strict=True))


def whole(shape: Sequence[int]) -> Box:
    """Return the box that covers a tensor of this shape completely."""
    return Box((0,) * len(shape), tuple(shape))


@dataclass(frozen=True, slots=True)
class Leaf:
    """One tensor of a tree, and the part of it that somebody has."""

    shape: tuple[int, ...]
    """Of the whole."""
    box: Box
    dtype: str
    """As torch names it, without ``torch.``."""

    @property
    def volume(self) -> int:
        """Number of elements of the complete tensor."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Leaves:
    """All of a tree, in order; a document between ranks."""

    leaves: tuple[Leaf, ...]


@dataclass(frozen=True, slots=True)
class Kept:
    """One version, on one rank."""

    commit: int
    layout: int
    holdings: tuple[tuple[Leaf, ...], ...]
    """Its own parts of all tensors, and those of other ranks that it keeps a copy of."""

    @property
    def key(self) -> Key:
        """By which versions are ordered."""
        return self.commit, self.layout


@dataclass(frozen=True, slots=True)
class Catalog:
    """Versions of the state that a rank holds parts of. Ranks exchange their catalogs."""

    host: str
    """What it is lost with: its worker."""
    versions: tuple[Kept, ...] = ()

    def holdings(self, key: Key) -> tuple[tuple[Leaf, ...], ...]:
        """Return what this rank holds of a version. Empty if it does not have that version."""
        return next((each.holdings for each in self.versions if each.key == key), ())


def newest_whole(catalogs: Sequence[Catalog]) -> Key | None:
    """The newest version of which every element is on some rank; None: there is none."""
    keys = {each.key for catalog in catalogs for each in catalog.versions}
    return next((key for key in sorted(keys, reverse=True) if _is_whole(catalogs, key)), None)


def _is_whole(catalogs: Sequence[Catalog], key: Key) -> bool:
    holdings = [leaves for catalog in catalogs for leaves in catalog.holdings(key)]
    if len({tuple((leaf.shape, leaf.dtype) for leaf in leaves) for leaves in holdings}) != 1:
        return False
    for parts in zip(*holdings, strict=True):
        distinct = {part.box for part in parts if part.box.volume}
        if sum(box.volume for box in distinct) != parts[0].volume:
            return False
    return True


def keepers(hosts: Sequence[str]) -> list[int]:
    """For each rank the one that keeps a copy of its part: the next one of another host, or the next one at all."""
    count = len(hosts)
    found = []
    for rank, host in enumerate(hosts):
        order = [(rank + step) % count for step in range(1, count)]
        found.append(next((each for each in order if hosts[each] != host), order[0] if order else rank))
    return found


@dataclass(frozen=True, slots=True)
class Piece:
    """To be copied from one rank to another, or on one rank."""

    leaf: int
    source: int
    holding: int
    """Of the source, that has it."""
    target: int
    box: Box


def pieces(leaf: int, holders: Sequence[Sequence[Box]], needs: Sequence[Box]) -> Iterator[Piece]:
    """What makes one tensor lie as it is needed. Where several ranks have a box, those that need it share the senders.

    Args:
        leaf: its number.
        holders: for each rank, the boxes that its holdings have of it.
        needs: for each rank, the box that it is to have.
    """
    found: dict[Box, dict[int, int]] = {}
    for rank, boxes in enumerate(holders):
        for holding, box in enumerate(boxes):
            if box.volume:
                found.setdefault(box, {}).setdefault(rank, holding)
    for target, need in enumerate(needs):
        for box, ranks in found.items():
            if common := box.common(need):
                source = target if target in ranks else sorted(ranks)[(target + leaf) % len(ranks)]
                yield Piece(leaf, source, ranks[source], target, common)


def groups(sizes: Sequence[int], most: int) -> Iterator[range]:
    """Consecutive numbers of items of these sizes, so that the sum of each group is at most so much, or one item."""
    start, total = 0, 0
    for number, size in enumerate(sizes):
        if number > start and total + size > most:
            yield range(start, number)
            start, total = number, 0
        total += size
    if start < len(sizes):
        yield range(start, len(sizes))
