"""How a request of the page asks what may be silent: within one deadline, and not again what was silent lately."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import TypeVar

from elastic_runtime.errors import ClusterUnavailable
from elastic_training.archive.outages import Outages
from elastic_training.concurrency.daemons import within

T = TypeVar("T")
LOOK = 5.0
"""Seconds for place, archive and prices of one look together."""
PLACE = 3.0
"""Seconds of these for the place, so that the archive can still tell what is kept."""
OUTAGES = Outages()
"""Outages that this process has seen."""


class Deadline:
    """Deadline of one request, from now on.

    Args:
        seconds: for all that it asks.
    """

    def __init__(self, seconds: float = LOOK) -> None:
        self._until = monotonic() + seconds

    @property
    def left(self) -> float:
        """Return the seconds until the deadline."""
        return max(0.0, self._until - monotonic())

    def ask(self, name: str, function: Callable[[], T]) -> T:
        """Call what blocks; ``name`` says what it asks.

        Raises:
            ClusterUnavailable: it has not returned in time, or was silent lately.
            Exception: its own.
        """
        with OUTAGES.asking(name):
            left = self.left
            try:
                return within(left, function)
            except TimeoutError:
                raise ClusterUnavailable(f"{name} has not answered in {left:.1f} s") from None
