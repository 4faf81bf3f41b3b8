"""How long ago a run's lease was renewed, as far as this launcher can tell."""

from __future__ import annotations

from collections.abc import Callable


class LeaseAge:
    """Measured by the launcher's own clock from the last change that it has seen.

    Whoever renews it may be another machine, with another clock: what the lease says of the time is not compared.

    Args:
        now: monotonic seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._mark: object = None
        self._since = now()

    def see(self, mark: object) -> None:
        """Look at the lease: whatever is different after each renewal; None: there is none."""
        if mark != self._mark:
            self._mark = mark
            self.restart()

    def restart(self) -> None:
        """Count from now on, as when nobody could renew it until now."""
        self._since = self._now()

    def __call__(self) -> float | None:
        """Seconds since it was renewed; None: there is no lease."""
        return None if self._mark is None else self._now() - self._since
