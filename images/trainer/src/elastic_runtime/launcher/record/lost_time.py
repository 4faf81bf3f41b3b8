"""Where the time of a run went that was not training, by cause. Pure; the rules are in ``docs/observing.md``."""

from __future__ import annotations

from datetime import datetime

from elastic_runtime.run.status import Phase, Status
from elastic_runtime.run.status_figures import LostTime


class LostSeconds:
    """Told of what happens, in the order of happening.

    A gap begins with the last step that was told before a world ended and ends with the first one told by the next.
    Where no step was ever told, as by a script without a state that does not call ``report``, a gap ends when all ranks
    of the next world are connected: nothing is known of its first step.

    Args:
        now: when this launcher begins to count.
        previous: the status of the launcher before. Its seconds are continued, and what passed since is of its loss.
    """

    def __init__(self, now: datetime, previous: Status | None = None) -> None:
        self._seconds = {str(cause): 0.0 for cause in LostTime}
        self._cause: LostTime | None = LostTime.STARTING
        self._before_waiting = LostTime.STARTING
        self._since = now
        self._last_step: datetime | None = None
        self._connected: datetime | None = None
        """When the present world was, before any step was told."""
        self._untold = 0.0
        """Seconds for which ranks were connected and told no step, in worlds that are over."""
        self._has_world = self._is_paused = False
        self._knows_checkpoints = previous is not None and LostTime.CHECKPOINT in previous.lost_seconds
        if previous is not None:
            self._seconds |= {cause: previous.lost_seconds.get(cause, 0.0) for cause in self._seconds}
            self._since = min(now, previous.updated)
            if previous.started is not None:
                self._cause = self._before_waiting = LostTime.RECOVERY
            if previous.phase is Phase.SUSPENDED:
                self._cause = LostTime.WAITING_FOR_CAPACITY
            if previous.phase is Phase.PAUSED:
                self._cause, self._is_paused = None, True
        self._first, self._before = self._before_waiting, dict(self._seconds)

    def stepped(self, now: datetime) -> None:
        """Record that a rank has reported a step, which ends time lost in a complete world."""
        if self._last_step is None:
            self._steps_are_told()
        if self._cause is None:
            self._last_step = now
        elif self._has_world:
            self._book(now, None)
            self._last_step = now
        elif self._cause is LostTime.RESIZE:
            self._since = max(self._since, now)  # The world that is to end has made one more.

    def disturbed(self, now: datetime) -> None:
        """A rank or a worker of the world is lost."""
        self._trained_without_steps(now)
        if self._cause is None:
            self._begin(LostTime.RECOVERY, now)
        elif self._cause is LostTime.RESIZE:
            self._book(now, LostTime.RECOVERY)
        elif self._cause is LostTime.WAITING_FOR_CAPACITY and self._before_waiting is LostTime.RESIZE:
            self._before_waiting = LostTime.RECOVERY
        self._has_world = False

    def world_over(self, now: datetime) -> None:
        """Record that no rank trains."""
        self._trained_without_steps(now)
        if self._cause is None:
            self._begin(LostTime.RESIZE, now)
        self._has_world = False

    def world_complete(self, now: datetime) -> None:
        """All ranks of another world are connected."""
        self._trained_without_steps(now)
        if self._cause is None:
            self._begin(LostTime.RESIZE, now)
        self._has_world = True
        if self._last_step is None:
            self._connected = now

    def stands(self, phase: Phase, now: datetime) -> None:
        """The run's phase, whenever it is decided. A pause is no loss: nothing is held meanwhile."""
        if phase is Phase.PAUSED:
            if not self._is_paused:
                self._book(now, None)
            self._is_paused = True
            return
        if self._is_paused:
            self._is_paused = False
            has_trained = self._last_step or self._untold or self._first is LostTime.RECOVERY
            self._book(now, LostTime.RESIZE if has_trained else LostTime.STARTING)
        waits = self._cause is LostTime.WAITING_FOR_CAPACITY
        if phase is Phase.SUSPENDED and not waits:
            if self._cause is None:
                self._begin(LostTime.RESIZE, now)
            self._before_waiting = self._cause or LostTime.RESIZE
            self._book(now, LostTime.WAITING_FOR_CAPACITY)
        elif phase is not Phase.SUSPENDED and waits:
            self._book(now, self._before_waiting)

    def stalled(self, seconds: float) -> None:
        """A durable checkpoint has held up the training for so long."""
        self._knows_checkpoints = True
        self._seconds[LostTime.CHECKPOINT] += max(0.0, seconds)

    def ended(self, now: datetime) -> None:
        """The run is over. Ranks that end look like a resize that no world follows: it was none."""
        if self._cause is LostTime.RESIZE and not self._has_world:
            self._cause = None
        self._book(now, None)

    def told(self, now: datetime) -> dict[str, float]:
        """By :class:`LostTime`, up to now, as far as it is known."""
        seconds = dict(self._seconds)
        if not self._knows_checkpoints:
            del seconds[LostTime.CHECKPOINT]
        if self._cause is not None:
            seconds[self._cause] += _between(self._since, self._end_of_gap(now))
        return {cause: round(value, 3) for cause, value in seconds.items()}

    def _trained_without_steps(self, now: datetime) -> None:
        """The present world ends, and has told of no step: since it was connected, it has trained."""
        if self._connected is not None:
            self._untold += _between(self._connected, now)
            self._book(now, None)

    def _steps_are_told(self) -> None:
        """So worlds that were over before the first step have not trained: all that was before is of the beginning."""
        self._connected = None
        if not self._untold:
            return
        seconds, self._untold = self._untold, 0.0
        for cause in {LostTime.RECOVERY, LostTime.RESIZE} - {self._first}:
            seconds += self._seconds[cause] - self._before[cause]
            self._seconds[cause] = self._before[cause]
            if self._cause is cause:
                self._cause = self._first
        self._seconds[self._first] += seconds

    def _begin(self, cause: LostTime, now: datetime) -> None:
        self._cause = cause
        self._since = now if self._last_step is None else min(self._last_step, now)

    def _book(self, now: datetime, cause: LostTime | None) -> None:
        """What has lasted is over; this begins."""
        if self._cause is not None:
            self._seconds[self._cause] += _between(self._since, self._end_of_gap(now))
        self._cause, self._since, self._connected = cause, now, None

    def _end_of_gap(self, now: datetime) -> datetime:
        return now if self._connected is None else self._connected


def _between(begin: datetime, end: datetime) -> float:
    """Not negative when the clock was set back."""
    return max(0.0, (end - begin).total_seconds())
