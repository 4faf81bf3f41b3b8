"""Which ranks of a world run at one place, numbered there as torchrun does: ``LOCAL_RANK``, ``LOCAL_WORLD_SIZE``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence


def local_ranks(members: Sequence[str], host: Callable[[str], str]) -> dict[str, tuple[int, int]]:
    """Number within its host, and ranks there, by rank id.

    Args:
        members: rank ids of a world, by rank.
        host: where one runs; ranks at the same place have the same.
    """
    hosts = {rank_id: host(rank_id) for rank_id in members}
    sizes, seen = Counter(hosts.values()), Counter[str]()
    found = {}
    for rank_id, where in hosts.items():
        found[rank_id] = seen[where], sizes[where]
        seen[where] += 1
    return found
