"""The deadline of a simulated run: what the launcher has measured, estimates and decides, by its own modules."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from elastic_runtime.launcher.deadline_watch import DeadlineWatch
from elastic_runtime.launcher.decision.deadline import LOOK
from elastic_runtime.launcher.decision.sizing import Sizing
from elastic_runtime.launcher.record.lives import Lives
from elastic_runtime.launcher.record.progress import ProgressRecord, Sizes
from elastic_runtime.launcher.record.time_left import ENOUGH
from elastic_runtime.protocol.rank_link import TotalSteps
from elastic_runtime.rehearsal.account import Cause
from elastic_runtime.run.deadline import DeadlineSpec
from elastic_runtime.run.spec import RecoverySpec, RunSpec, WorkersSpec
from elastic_runtime.run.status import EventKind, Phase
from elastic_runtime.run.status_figures import LostTime

log = logging.getLogger(__name__)

BEGIN = datetime(2000, 1, 1, tzinfo=UTC)
"""Wall clock at the beginning of each simulation."""


class Steering:
    """What a :class:`.DeadlineWatch` needs of a launcher: a clock, and a record of steps and workers.

    Args:
        deadline: of the run; its moment counts from :data:`BEGIN`.
        workers: bounds, and the size at first.
        recovery: of the run.
        steps: that it has to do.
    """

    def __init__(self, deadline: DeadlineSpec, workers: WorkersSpec, recovery: RecoverySpec, steps: int) -> None:
        spec = RunSpec("rehearsal", "rehearsal", ("true",), workers=workers, recovery=recovery, deadline=deadline)
        self._now = BEGIN
        self.estimates = ProgressRecord(spec, BEGIN, log.warning)
        self.estimates.total(TotalSteps(steps, by_script=True))
        self.lives = Lives()
        self.worker_seconds = 0.0
        """For which workers have been here so far, summed."""
        self._sizing = Sizing(spec)
        self._watch = DeadlineWatch(spec, self, self._sizing, lambda: self._now)
        self._known = False

    def event(self, kind: EventKind, message: str, *, level: int | None = None) -> None:
        """Nobody reads the events of a rehearsal."""

    @property
    def next_look(self) -> float:
        """Seconds until the next look: the launcher looks each second, and decides once there is an estimate."""
        return LOOK.total_seconds() + 1 if self._known else ENOUGH

    def world(self, ranks: int) -> None:
        """A world of so many ranks is complete."""
        self.estimates.world(ranks)

    def trained(self, before: float, after: float, begin: float, seconds: float) -> None:
        """The world trains from one step, in parts of steps, to another. Its ranks report each; two are enough here.

        Args:
            before: steps done.
            after: more steps done.
            begin: seconds since the run's begin.
            seconds: that it took.
        """
        for step in sorted({math.floor(before) + 1, math.floor(after)}):
            if before < step <= after:
                at = begin + seconds * (step - before) / (after - before)
                self.estimates.stepped(step, BEGIN + timedelta(seconds=at))

    def look(self, now: float, step: int, ranks: int, leaving: Sequence[float], paused: Mapping[Cause, float]) -> int:
        """Look at the deadline. Returns the workers to ask for, each of which has one rank.

        Args:
            now: seconds since the run's begin.
            step: the newest that is done.
            ranks: that train.
            leaving: when those of them are taken that have a notice.
            paused: seconds in which none trained, by cause.
        """
        self._now = BEGIN + timedelta(seconds=now)
        noticed = [(BEGIN + timedelta(seconds=each), 1) for each in leaving]
        lost: dict[str, float] = {
            LostTime.RESIZE: paused.get(Cause.RESIZING, 0.0),
            LostTime.RECOVERY: paused.get(Cause.RECOVERING, 0.0) + paused.get(Cause.RESTARTING, 0.0),
        }
        sizes = Sizes(ranks, self._sizing.wanted, (), noticed)
        told = self.estimates.told(step if self.estimates.paces.told() else None, Phase.RUNNING, sizes, lost, self._now)
        self._known = told is not None and told.seconds is not None
        self._watch.look()
        return self._sizing.wanted

    def over_budget(self, here: int) -> str | None:
        """Return why the run is to be stopped, for people; None: it may go on. ``here``: workers that are here."""
        return self._watch.over_budget(here)
