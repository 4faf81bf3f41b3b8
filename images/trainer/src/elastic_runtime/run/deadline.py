"""Deadline and budget of a run: in its spec, and how it stands to them in its status."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Self

from elastic_runtime.errors import InvalidSettings

LEAST_DOLLARS, MOST_DOLLARS = 0.000001, 1e9
"""A budget, or the price of a worker."""
MAX_WORDS = 300
"""Characters of :attr:`DeadlineStatus.words`."""


@dataclass(frozen=True, slots=True)
class DeadlineSpec:
    """When a run shall be done, and what it may cost: see :mod:`elastic_runtime.launcher.decision.deadline`."""

    by: datetime | None = None
    """Aware. None: as soon as the budget allows."""
    budget: float | None = None
    """Dollars. The run is stopped before it costs more. None: no limit."""
    price: float | None = None
    """Dollars an hour of one worker. None: not known, which a budget does not allow."""
    time_zone: str = "UTC"
    """Name in the IANA database, for times in messages."""

    def __post_init__(self) -> None:
        remedy = 'Write Deadline(by="06:00", time_zone="Europe/Berlin"), Deadline(budget=40.0, price=0.25), or both'
        if self.by is None and self.budget is None:
            raise InvalidSettings("deadline", "it has neither by nor budget", remedy)
        if self.by is not None and self.by.tzinfo is None:
            raise InvalidSettings("deadline.by", f"{self.by} has no time zone", remedy)
        for name, dollars in (("budget", self.budget), ("price", self.price)):
            if dollars is not None and not LEAST_DOLLARS <= dollars <= MOST_DOLLARS:
                bounds = f"{LEAST_DOLLARS:f} to {MOST_DOLLARS:.0f}"
                raise InvalidSettings(f"deadline.{name}", f"{dollars} is out of bounds", f"Write {bounds} dollars")
        if self.budget is not None and self.price is None:
            remedy = "Write price=, dollars an hour of one worker, or workers.machine and price_book"
            raise InvalidSettings("deadline.budget", "the price of a worker is not known", remedy)


@dataclass(frozen=True, slots=True)
class DeadlineStatus:
    """How a run stands to its deadline and budget."""

    by: datetime | None = None
    budget: float | None = None
    """Dollars."""
    spent: float | None = None
    """Dollars for all workers so far. None: no price is known."""
    words: str = ""
    """Why it cannot be done as things stand, for people; empty: it can, as far as is known."""
    held_until: datetime | None = None
    """Until when a size is kept that somebody has asked for. None: none is."""

    def without_figures(self) -> Self:
        """Return it without what changes from look to look: dollars, times, sizes."""
        return replace(self, spent=None, words="it cannot be done" if self.words else "")


def deadline_words(status: DeadlineStatus) -> str:
    """Return it for a line of text: ``by 2026-11-28 05:00 UTC; 12.40 $ spent, of 40.00 $``, and its words."""
    words = [f"by {status.by.astimezone(UTC):%Y-%m-%d %H:%M} UTC"] if status.by else []
    if status.spent is not None:
        words.append(f"{status.spent:.2f} $ spent{'' if status.budget is None else f', of {status.budget:.2f} $'}")
    if status.held_until is not None:
        words.append(f"size kept until {status.held_until.astimezone(UTC):%H:%M} UTC")
    return "; ".join([*words, *filter(None, [status.words])])
