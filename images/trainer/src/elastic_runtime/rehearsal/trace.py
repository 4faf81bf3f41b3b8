"""A trace: machines of a spot market that come and go, and what they cost. The files: :mod:`.trace_files`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from random import Random

from elastic_runtime.errors import InvalidSettings

HOUR = 3600.0
DAY = 24 * HOUR


@dataclass(frozen=True, slots=True)
class Stay:
    """One machine, from when it is there to when it is not."""

    name: str
    """Of the machine; ``node~2`` for the second stay of ``node``."""
    begin: float
    """Seconds since the trace's begin."""
    end: float
    """The same; the trace's end where nobody took the machine before."""


@dataclass(frozen=True, slots=True)
class Trace:
    """From the first change to the last.

    A removal at the very end is the end of what was recorded, and not a loss.
    """

    name: str
    stays: tuple[Stay, ...]
    """In the order of their begin."""
    duration: float
    """Seconds."""
    prices: tuple[tuple[float, Decimal], ...] = ()
    """(seconds, US dollars an hour of a machine from then on), ascending from 0. Empty: not known."""

    @property
    def losses(self) -> tuple[Stay, ...]:
        """Of machines that were taken before the end."""
        return tuple(stay for stay in self.stays if stay.end < self.duration)

    @property
    def node_seconds(self) -> float:
        """Of all machines together."""
        return sum(stay.end - stay.begin for stay in self.stays)

    @property
    def losses_per_node_hour(self) -> float:
        """How stormy it is."""
        return len(self.losses) / (self.node_seconds / HOUR)

    def levels(self) -> list[tuple[float, int]]:
        """How many machines there are from which moment on; begins at 0, one entry a moment."""
        changes: dict[float, int] = {}
        for stay in self.stays:
            changes[stay.begin] = changes.get(stay.begin, 0) + 1
            changes[stay.end] = changes.get(stay.end, 0) - 1
        count, levels = 0, []
        for moment in sorted(changes):
            count += changes[moment]
            levels.append((moment, count))
        return levels

    @property
    def peak(self) -> int:
        """Most machines at once."""
        return max(count for _, count in self.levels())


CLOUD_NOTICES: Mapping[str, float] = {"aws": 120.0, "gcp": 15.0, "azure": 30.0, "alibaba": 300.0}
"""Seconds from notice to loss that pods have, by cloud (docs/failures.md)."""


@dataclass(frozen=True, slots=True)
class Notices:
    """Which losses are announced, and how those that are not come to light."""

    share: float = 1.0
    """Of the losses that are announced, 0 to 1."""
    deadline: float = 120.0
    """Seconds from notice to loss: 120 on AWS, 30 on GCP (of which pods get 15) and Azure."""
    silent: bool = False
    """Whether machines that go without a notice do so without closing their connections, as at a power failure."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise InvalidSettings("notices.share", f"{self.share} is not a share", "Write a number from 0 to 1")
        if self.deadline < 0:
            raise InvalidSettings("notices.deadline", f"{self.deadline} is in the past", "Write 0 or more seconds")

    def moment(self, stay: Stay, trace: Trace) -> float | None:
        """When word comes that the machine will be taken; None when none does. The same for every policy."""
        announced = Random(f"{self.seed}/{stay.name}").random() < self.share  # noqa: S311  # no secret
        if stay.end >= trace.duration or not announced:
            return None
        return max(stay.begin, stay.end - self.deadline)


def trace_text(stays: Iterable[Stay], duration: float) -> str:
    """As CSV; machines that stay are removed at the end, so that it is known when that is."""
    changes = [(stay.begin, 1, stay.name) for stay in stays if stay.begin < duration]
    changes += [(min(stay.end, duration), 0, stay.name) for stay in stays if stay.begin < duration]
    # Of changes at one time, removals come first: fewer machines are there at once.
    return "".join(f"{round(at * 1000)},{('remove', 'add')[kind]},{name}\n" for at, kind, name in sorted(changes))
