"""Follows a run's deadline and budget: looks, has sizes set, and tells what changes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Protocol

from elastic_runtime.launcher.decision.deadline import (
    HOLD,
    LOOK,
    DeadlineFacts,
    DeadlineSettings,
    SizeEstimate,
    Trouble,
    compared,
    decide,
    over_budget,
    spent,
)
from elastic_runtime.launcher.decision.sizing import Sizing
from elastic_runtime.launcher.record.lives import Lives
from elastic_runtime.launcher.record.progress import ProgressRecord
from elastic_runtime.launcher.record.time_left import ENOUGH
from elastic_runtime.run.deadline import DeadlineStatus
from elastic_runtime.run.spec import RunSpec, WorkersSpec
from elastic_runtime.run.status import EventKind, Status


class WatchedRecord(Protocol):
    """What is used of a run's record."""

    worker_seconds: float
    """For which workers have been here so far, summed."""
    lives: Lives

    @property
    def estimates(self) -> ProgressRecord:
        """The progress of the newest status."""

    def event(self, kind: EventKind, message: str, *, level: int | None = None) -> None:
        """Note what has changed."""


class DeadlineWatch:
    """Follow the deadline of a run. Does nothing for a run without one.

    Args:
        spec: of the run.
        record: of the run, where changes are told; a :class:`.RunRecord`, or what a rehearsal has instead.
        sizing: where sizes are set.
        now: wall clock.
        previous: status of the launcher before.
    """

    def __init__(
        self,
        spec: RunSpec,
        record: WatchedRecord,
        sizing: Sizing,
        now: Callable[[], datetime],
        previous: Status | None = None,
    ) -> None:
        self._settings = DeadlineSettings(spec.deadline, spec.workers) if spec.deadline else None
        self._record, self._sizing, self._now = record, sizing, now
        self._known = previous.target_size if previous else spec.workers.start
        """Workers that nobody has to have asked for since."""
        before = previous.deadline if previous else None
        self._held_until = before.held_until if before else None
        self._due: datetime | None = None
        self._trouble: frozenset[Trouble] = frozenset()
        self._words = ""

    def size_seen(self, *, asked: bool) -> str:
        """The size that is wanted was looked at. Returns what follows for it, for people; empty: nothing.

        Args:
            asked: somebody has asked for it.
        """
        before, self._known = self._known, self._sizing.wanted
        if self._settings is None or not asked or self._known == before:
            return ""
        self._held_until = self._now() + HOLD
        return f"; kept for {HOLD.seconds // 3600} h, then the deadline sets the size again"

    def over_budget(self, here: int) -> str | None:
        """Return why the run is to be stopped, for people; None: it may go on. ``here``: workers that are here."""
        return over_budget(self._record.worker_seconds, here, self._settings.deadline) if self._settings else None

    def look(self) -> None:
        """Have the size set, and changes told, if a look is due."""
        now = self._now()
        if self._settings is None or self._sizing.pause or (self._due is not None and now < self._due):
            return
        decision = decide(self._facts(self._settings.workers), self._settings, now)
        if not decision.words:
            return
        self._due, self._words = now + LOOK, decision.words if decision.trouble else ""
        if decision.trouble != self._trouble:
            self._trouble = decision.trouble
            level = logging.WARNING if decision.trouble else logging.INFO
            self._record.event(EventKind.DEADLINE, decision.words, level=level)
        before = self._sizing.wanted
        if decision.workers != before:
            self._known = decision.workers
            self._sizing.order(decision.workers)
            words = f"{decision.workers} workers by the deadline, {before} before: {decision.why}"
            self._record.event(EventKind.SIZE_ASKED, words)

    def told(self) -> DeadlineStatus | None:
        """Return it for the status. None: the run has neither deadline nor budget."""
        if self._settings is None:
            return None
        deadline, dollars = self._settings.deadline, spent(self._record.worker_seconds, self._settings.deadline)
        shown = None if dollars is None else round(dollars, 4)
        held = self._held_until if self._held_until and self._now() < self._held_until else None
        return DeadlineStatus(deadline.by, deadline.budget, shown, self._words, held)

    def _facts(self, bounds: WorkersSpec) -> DeadlineFacts:
        wanted, estimates = self._sizing.wanted, self._record.estimates
        measured = sum(each.seconds for each in estimates.paces.told())
        sizes = tuple(self._estimates(wanted, bounds)) if measured >= ENOUGH else ()
        return DeadlineFacts(
            wanted=wanted,
            worker_seconds=self._record.worker_seconds,
            sizes=sizes if any(each.workers == wanted for each in sizes) else (),
            measured=measured,
            missing=estimates.missing,
            steps_known=estimates.steps_known,
            held_until=self._held_until,
            trouble=self._trouble,
        )

    def _estimates(self, wanted: int, bounds: WorkersSpec) -> Iterator[SizeEstimate]:
        for workers in compared(bounds, wanted):
            ranks = workers * bounds.slots
            left = self._record.estimates.with_ranks(ranks)
            # Without any time left, there is nothing to decide.
            if left and left.seconds > 0 and (workers == wanted or ranks not in self._record.lives.refused):
                yield SizeEstimate(workers, left.least, left.seconds, left.most)
