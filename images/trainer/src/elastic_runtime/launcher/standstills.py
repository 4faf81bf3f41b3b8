"""What the ranks of a world say of where they stand: what they are busy with, and their answers when they are asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from elastic_runtime.launcher.decision.facts import Inquiry, RankStanding, Stall
from elastic_runtime.protocol.rank_link import Busy, Standing
from elastic_runtime.protocol.rank_names import RankName

MAX_STALLS = 100
"""Standstills of a run that are remembered: the latest."""


@dataclass(slots=True)
class _Asked:
    """The question, and its answers by rank id."""

    time: float
    step: int | None
    answers: dict[str, Standing] = field(default_factory=dict)
    stopped: set[str] = field(default_factory=set)
    acted: float | None = None
    quiet: bool = False
    early: bool = False
    before: _Asked | None = None
    """The question before, in the same world."""

    @property
    def repeated(self) -> bool:
        """Whether the answers are the same as to the question before."""
        return self.before is not None and _but_for_time(self.answers) == _but_for_time(self.before.answers)

    def proves(self, rank_id: str) -> bool:
        """Whether a rank has not moved since the question before."""
        if self.before is None:
            return False
        if rank_id in self.stopped & self.before.stopped:
            return True
        now, then = self.answers.get(rank_id), self.before.answers.get(rank_id)
        if now is None or then is None:
            return now is then
        same = now.collectives is not None and now.collectives == then.collectives and now.commits == then.commits
        return same and now.waits and then.waits


def _but_for_time(answers: Mapping[str, Standing]) -> dict[str, Standing]:
    return {rank_id: replace(each, idle=0.0) for rank_id, each in answers.items()}


class Standstills:
    """Keep them for the decision. Times are seconds of one clock.

    Args:
        now: monotonic seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._excused = -math.inf
        self._busy: dict[str, float] = {}
        """Until when, by rank id."""
        self._asked: _Asked | None = None
        self._stalls: list[Stall] = []

    def excused(self, rank_ids: Iterable[str]) -> float:
        """Return :attr:`.Facts.excused` of a world of these ranks."""
        return max(self._excused, *map(self.busy_until, rank_ids), -math.inf)

    def busy_until(self, rank_id: str) -> float:
        """Return until when a rank has said that it is busy."""
        return self._busy.get(rank_id, -math.inf)

    @property
    def stalls(self) -> tuple[Stall, ...]:
        """Return the standstills that were acted upon."""
        return tuple(self._stalls)

    def inquiry(self, rank_of: Mapping[str, int]) -> Inquiry | None:
        """Return the newest inquiry of the present world. None: it was not asked.

        Args:
            rank_of: numbers of its ranks, by rank id.
        """
        if (asked := self._asked) is None:
            return None
        order = sorted(rank_of, key=rank_of.__getitem__)
        steps = [each.step for each in asked.answers.values() if each.step is not None]
        step = max(steps, default=asked.step)
        ranks = tuple(self._standing(asked, each, rank_of[each]) for each in order)
        proves = any(asked.proves(each) for each in order)
        repeated = asked.repeated and asked.answers.keys() >= rank_of.keys()
        return Inquiry(asked.time, ranks, step, asked.acted, asked.quiet, proves, asked.early, repeated)

    def _standing(self, asked: _Asked, rank_id: str, rank: int) -> RankStanding:
        name = RankName.parse(rank_id)
        known = RankStanding(rank, rank_id, str(name.worker), name.lasting_slot, stopped=rank_id in asked.stopped)
        if (answer := asked.answers.get(rank_id)) is None:
            return known
        return replace(
            known,
            answered=True,
            commits=answer.commits,
            collectives=answer.of_all,
            beside=answer.beside,
            waits=answer.waits,
            place=answer.place,
            in_commit=answer.in_commit,
            blocked=answer.blocked,
        )

    def new_world(self, members: Collection[str]) -> None:
        """A world of these is complete: what was told is of another, but for what its ranks are busy with."""
        self._asked = None
        self._busy = {rank_id: until for rank_id, until in self._busy.items() if rank_id in members}

    def asks(self, step: int | None, *, quiet: bool = False, early: bool = False) -> None:
        """All ranks are asked now.

        Args:
            step: the newest that was told.
            quiet: as :attr:`.AskRanks.quiet` has it.
            early: as :attr:`.AskRanks.early` has it.
        """
        before = replace(self._asked, before=None) if self._asked and self._asked.early == early else None
        self._asked = _Asked(self._now(), step, quiet=quiet, early=early, before=before)

    def acts(self, stall: Stall) -> None:
        """Ranks are stopped, or their world is broken up, because of this one."""
        self._stalls = [*self._stalls, stall][-MAX_STALLS:]
        if self._asked is not None:
            self._asked.acted = self._now()

    def said(self, rank_id: str, said: Busy | Standing) -> None:
        """A rank says so."""
        now = self._now()
        if isinstance(said, Busy):
            until = now + said.seconds
            if not said.seconds:  # Each answer says so, also long after the last block.
                until = min(until, self._busy.get(rank_id, -math.inf))
            self._busy[rank_id] = until
        elif self._asked is not None:
            self._asked.answers[rank_id] = said
            self._excused = max(self._excused, now - said.idle)

    def stopped(self) -> None:
        """Ranks say that they have stopped at a durable commit, as before they are taken: nobody commits now."""
        self._excused = max(self._excused, self._now())

    def runs(self, rank_id: str, *, stopped: bool) -> None:
        """An agent says so."""
        if stopped and self._asked is not None:
            self._asked.stopped.add(rank_id)
