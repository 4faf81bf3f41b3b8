"""Which ranks of a world run at one place, numbered there as torchrun does: ``LOCAL_RANK``, ``LOCAL_WORLD_SIZE``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Local:
    """Where a rank of a world is."""

    rank: int = 0
    """Its number within its host."""
    size: int = 1
    """Ranks there."""
    host: int = 0
    """Number of the host, by each one's lowest rank."""
    hosts: int = 1
    """Hosts of the world."""


def by_host(members: Sequence[str], host: Callable[[str], str]) -> tuple[str, ...]:
    """The same rank ids, those of one host together; hosts in the order of their first. See :func:`local_ranks`."""
    homes = {rank_id: host(rank_id) for rank_id in members}
    order = {home: index for index, home in enumerate(dict.fromkeys(homes.values()))}
    return tuple(sorted(members, key=lambda rank_id: order[homes[rank_id]]))


def local_ranks(members: Sequence[str], host: Callable[[str], str]) -> dict[str, Local]:
    """By rank id.

    Args:
        members: rank ids of a world, by rank.
        host: where one runs; ranks at the same place have the same.
    """
    homes = {rank_id: host(rank_id) for rank_id in members}
    sizes, seen = Counter(homes.values()), Counter[str]()
    order = {home: index for index, home in enumerate(sizes)}
    found = {}
    for rank_id, home in homes.items():
        found[rank_id] = Local(seen[home], sizes[home], order[home], len(order))
        seen[home] += 1
    return found
