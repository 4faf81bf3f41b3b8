"""When lines of a log are passed on, and when it is noted in the cluster how far they have come.

Each is little for one run and much for a thousand in one triggerer: to note is a request; and what is passed on wakes
Airflow's supervisor, which then looks into its database. So both happen the less often for one run the more runs there
are, at whole seconds, so that many runs wake it at one time, and each time after another while, so that runs that began
together do not stay together. What was passed on and not noted comes again, if the triggerer is killed; not if it ends.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from elastic_training.clusters.base import LogLines

BATCHES = 20.0
"""Batches of lines that are passed on in a second, at most, of all runs of this process together."""
NOTES = 5.0
"""Requests a second that note how far a log has come, the same."""
LEAST = 1.0
"""Seconds between two of either, for one run."""


class Source(Protocol):
    """Where the lines come from."""

    @property
    def waiting(self) -> bool:
        """Whether there are lines to take."""

    def take(self) -> LogLines:
        """What has come since the last time; may be nothing."""


class Batches:
    """Of one run.

    Args:
        source: of the lines.
        runs: how many runs this process waits for.
    """

    def __init__(self, source: Source, runs: Callable[[], int]) -> None:
        self._source = source
        self._runs = runs
        self._batch_due = self._note_due = 0.0
        self._noted = True

    def next(self, now: float, *, last: bool) -> LogLines | None:
        """What is to be passed on or to be noted at this time.

        Args:
            now: seconds, by any clock.
            last: the run is over, and all that there is has come.
        """
        note = last or now >= self._note_due
        if not (self._source.waiting and (last or now >= self._batch_due)) and (self._noted or not note):
            return None
        self._batch_due = self._after(now, BATCHES)
        if note:
            self._note_due = self._after(now, NOTES)
        self._noted = note
        return replace(self._source.take(), note=note)

    @property
    def due(self) -> float:
        """When to ask again, unless something comes before."""
        return min(
            self._batch_due if self._source.waiting else math.inf,
            math.inf if self._noted else self._note_due,
        )

    def _after(self, now: float, rate: float) -> float:
        pause = random.uniform(0.5, 1.5) * self._runs() / rate  # noqa: S311  # spreads load, guards nothing
        return math.floor(now + max(LEAST, pause))
