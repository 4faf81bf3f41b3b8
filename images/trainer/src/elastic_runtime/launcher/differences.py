"""What the ranks of a world tell of the same commits, compared once all have."""

from __future__ import annotations

from collections.abc import Mapping

from elastic_runtime.launcher.decision.difference import RankTally, compare
from elastic_runtime.launcher.decision.facts import Difference
from elastic_runtime.protocol.rank_names import RankName
from elastic_runtime.protocol.tallies import Tally

MAX_OPEN = 32
"""Commits that not all ranks have told of yet: the latest."""
MAX_PAST = 100
"""Differences of a run that are remembered: the latest."""


class Differences:
    """Keep them for the decision."""

    def __init__(self) -> None:
        self._open: dict[int, dict[str, Tally]] = {}
        self._suspected: Difference | None = None
        self._agreed: Tally | None = None
        """Of the last commit at which they did not differ."""
        self._past: list[Difference] = []
        self.present: Difference | None = None
        """That of the present world; None: there is none that lasts."""

    @property
    def past(self) -> tuple[Difference, ...]:
        """Return those that were acted upon."""
        return tuple(self._past)

    def new_world(self) -> None:
        """Another world is complete."""
        self._open.clear()
        self._suspected = self.present = self._agreed = None

    def acts(self) -> None:
        """Ranks are stopped, or their world is broken up, because of the present one."""
        if self.present is not None:
            self._past = [*self._past, self.present][-MAX_PAST:]
        self.new_world()

    def told(self, rank_id: str, tally: Tally, rank_of: Mapping[str, int]) -> None:
        """A rank tells of one of its commits.

        A difference counts if it is still there at the next commit that all tell of, and is told as of the first.

        Args:
            rank_id: which.
            tally: what it has begun.
            rank_of: numbers of the ranks of the present world, by rank id.
        """
        if rank_id not in rank_of:
            return
        told = self._open.setdefault(tally.commit, {})
        told[rank_id] = tally
        if not told.keys() >= rank_of.keys():
            while len(self._open) > MAX_OPEN:
                del self._open[min(self._open)]
            return
        self._open = {commit: each for commit, each in self._open.items() if commit > tally.commit}
        order = sorted(rank_of, key=rank_of.__getitem__)
        found = compare([_of(rank_of[each], each, told[each]) for each in order], self._agreed)
        before, self._suspected = self._suspected, found
        if found is None:
            self._agreed = told[order[0]]
        elif before and before.repeats(found):
            self.present = before


def _of(rank: int, rank_id: str, told: Tally) -> RankTally:
    return RankTally(rank, rank_id, RankName.parse(rank_id).lasting_slot, told)
