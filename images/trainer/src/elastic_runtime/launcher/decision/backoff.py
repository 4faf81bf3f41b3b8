"""How long a slot whose rank has failed is held back: longer each time, never for ever, and forgiven in the end."""

from __future__ import annotations

from dataclasses import dataclass

from elastic_runtime.retry import RetryPolicy
from elastic_runtime.run.spec import RecoverySpec


def backoff_policy(recovery: RecoverySpec) -> RetryPolicy:
    """Return the backoff policy of the user's settings."""
    return RetryPolicy(recovery.backoff, recovery.backoff_maximum)


@dataclass(slots=True)
class _Record:
    failures: int = 0
    usable_at: float = 0.0
    before: tuple[int, float] = (0, 0.0)
    """The two above, before the newest failure."""


class Backoff:
    """Remembers slots by name, beyond the life of one connection: a worker that flaps comes back again and again.

    Args:
        recovery: the delays.
    """

    def __init__(self, recovery: RecoverySpec) -> None:
        self._recovery = recovery
        self._records: dict[str, _Record] = {}

    def failed(self, slot: str, now: float, lived: float) -> float:
        """Note a failure.

        Args:
            slot: its name.
            now: seconds of a monotonic clock.
            lived: for how many seconds the rank that failed had run.

        Returns:
            The moment from which on the slot may be used again.
        """
        self._forget(now)
        record = self._records.setdefault(slot, _Record())
        record.before = record.failures, record.usable_at
        record.failures = 1 if lived >= self._recovery.backoff_forgiven else record.failures + 1
        record.usable_at = now + backoff_policy(self._recovery).delay(record.failures)
        return record.usable_at

    def forgive(self, slot: str) -> float:
        """Undo the newest failure: it was another's. Returns as :meth:`failed` does."""
        if record := self._records.get(slot):
            record.failures, record.usable_at = record.before
        return self.usable_at(slot)

    def usable_at(self, slot: str) -> float:
        """Return when :meth:`failed` allows the slot again; 0 if it has not failed recently."""
        record = self._records.get(slot)
        return record.usable_at if record else 0.0

    def _forget(self, now: float) -> None:
        """Whoever has not failed for so long, here or not, is forgiven; so this does not grow with the run."""
        forgiven = self._recovery.backoff_forgiven
        for slot in [slot for slot, record in self._records.items() if now - record.usable_at >= forgiven]:
            del self._records[slot]
