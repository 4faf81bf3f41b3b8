"""Ranks compare fingerprints of what has to be equal on all of them, and stop where it is not."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, Literal, get_args

from elastic_runtime.errors import InvalidSettings, StatesDiffer
from elastic_runtime.training.family import Family
from elastic_runtime.training.state.collectives import broadcast_bytes
from elastic_runtime.training.state.fingerprint import Fingerprint, number_of
from elastic_runtime.world import World

Verify = Literal["commits", "syncs", "never"]
"""When ranks compare: after syncs and now and then at commits; after syncs alone; never."""
FEWEST_COMMITS = 20
"""From one comparison to the next."""
SHARE = 0.004
"""Share of a training's time that comparisons at commits may take."""
_NAMED = 5
"""Ranks that an error names."""


def check_verify(verify: str) -> None:
    """Raises InvalidSettings for what is not a :data:`Verify`."""
    if verify not in get_args(Verify):
        raise InvalidSettings("DurableState.verify", f"{verify!r} is unknown", f"Choose one of {get_args(Verify)}")


class CommitChecks:
    """At which commits ranks compare: the same on all of them, and so seldom that it takes :data:`SHARE` of the time.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        """All ranks are in a new world."""
        self._commits, self._pause, self._since = 0, FEWEST_COMMITS, self._clock()

    def due(self) -> bool:
        """Whether to compare at the commit that this call counts."""
        self._commits += 1
        return self._commits >= self._pause

    def run(self, world: World, family: Family, take: Callable[[], Fingerprint], when: str) -> None:
        """Compare; a collective.

        Args:
            world: the present one.
            family: whose tensors there are.
            take: makes this rank's fingerprint.
            when: for the error.

        Raises:
            StatesDiffer: on all ranks.
        """
        began = self._clock()
        mine = take()
        took, interval = self._clock() - began, (began - self._since) / self._commits
        commits = took / (SHARE * interval) if interval > 0 else 0.0
        [most] = compare(world, family, mine, when, [commits])
        self._commits, self._pause, self._since = 0, max(FEWEST_COMMITS, math.ceil(most)), self._clock()


def compare(
    world: World, family: Family, mine: Fingerprint, when: str, numbers: list[float] | None = None
) -> list[float]:
    """Compare with rank 0's fingerprint; a collective.

    Args:
        world: the present one.
        family: whose tensors there are.
        mine: this rank's.
        when: for the error.
        numbers: others to find the maximum of, in the same collective.

    Returns:
        The maximum over all ranks of each of the numbers.

    Raises:
        StatesDiffer: ranks have others; on all ranks.
    """
    number = float(number_of((key, entry.digest) for key, entry in mine.items()))
    greatest, least, *rest = world.maximum([number, -number, *(numbers or ())])
    if greatest != -least:
        raise _difference(world, family, mine, when)
    return rest


def _difference(world: World, family: Family, mine: Fingerprint, when: str) -> StatesDiffer:
    """Return the first difference between ranks, the same on all of them. A collective."""
    said = json.dumps(sorted((key, *entry) for key, entry in mine.items())) if world.rank == 0 else ""
    theirs: list[list[Any]] = json.loads(broadcast_bytes(world, family, said.encode()))
    place = 0
    for index, (key, _, digest) in enumerate(theirs, start=1):
        if key not in mine or mine[key].digest != digest:
            place = index
            break
    if not place and len(mine) > len(theirs):
        place = len(theirs) + 1
    places = world.maximum([float(place * (rank == world.rank)) for rank in range(world.size)])
    names = [name for _, name, _ in theirs] + ["an entry that rank 0 does not have"]
    found = [f"rank {rank}: {names[int(each) - 1]}" for rank, each in enumerate(places) if each]
    more = [f"and {len(found) - _NAMED} more ranks"] if len(found) > _NAMED else []
    return StatesDiffer(
        f"{when}, the state is not the same on all ranks. Differing from rank 0: {', '.join(found[:_NAMED] + more)}. "
        "Keep in the state what all ranks compute alike, and what its load_state_dict restores as it was"
    )
