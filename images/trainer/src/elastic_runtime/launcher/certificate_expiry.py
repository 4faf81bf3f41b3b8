"""The run's certificates are not renewed: people are warned before they expire, and once more when they have."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from elastic_runtime.launcher.record.run_record import RunRecord
from elastic_runtime.run.status import EventKind

AHEAD = timedelta(days=3)
"""How long before it people are warned: a weekend, and a day to act."""
REMEDY = 'Clear the task with on_clear="resume": a new run has new ones, and goes on from the newest checkpoint'


class CertificateExpiry:
    """Warn three days before the run's certificates expire, and when they have.

    Args:
        ends: when they expire.
        record: of the run, where the warnings are told.
        now: the time of day.
    """

    def __init__(self, ends: datetime, record: RunRecord, now: Callable[[], datetime]) -> None:
        self._ends, self._record, self._now = ends, record, now
        self._told = ""

    def look(self) -> None:
        """Warn, if there is something new to say."""
        words = warning(self._ends, self._now())
        if words and words != self._told:
            self._record.event(EventKind.WARNING, words)
        self._told = words


def warning(ends: datetime, now: datetime) -> str:
    """Return the warning for that time. Empty: none."""
    if now < ends - AHEAD:
        return ""
    consequence = "no worker can connect then, and a launcher that is replaced is left without workers"
    verb = "expire" if now < ends else "have expired"
    when = f"{ends:%Y-%m-%d %H:%M} UTC"
    return f"the run's certificates {verb} at {when}: {consequence}. {REMEDY}"
