"""What a soak measures, from the ranks' notes; and whether that is well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

WINDOW = 2.0
"""Seconds in which steps are counted."""


@dataclass(frozen=True, slots=True)
class Goals:
    """What must hold."""

    throughput: float = 0.95
    """Least ratio of disturbed to undisturbed steps per second; medians of :data:`WINDOW`."""
    memory: float = 150.0
    """Most MB (10^6 bytes) of the launcher, resident, at its worst."""
    resize: float = 2.0
    """Most seconds from a wish to the first step of the new world."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured."""

    quiet: float
    """Steps per second without strangers."""
    disturbed: float
    """With them; the resizes are left out."""
    memory: float
    """MB."""
    resizes: tuple[float, ...]
    """Seconds."""
    held: float
    """Connections of strangers, median over time."""
    made: int
    """Connections that they made in all."""
    ended: str
    """What is wrong with the end; empty: nothing."""

    def troubles(self, goals: Goals) -> list[str]:
        """In words; empty: all is well."""
        ratio = self.disturbed / self.quiet
        found = [
            (ratio < goals.throughput, f"throughput is {ratio:.3f} of the undisturbed, wanted {goals.throughput}"),
            (self.memory > goals.memory, f"the launcher takes {self.memory:.0f} MB, wanted {goals.memory:.0f}"),
            (max(self.resizes) > goals.resize, f"a resize takes {max(self.resizes):.2f} s, wanted {goals.resize}"),
            (bool(self.ended), self.ended),
        ]
        return [words for wrong, words in found if wrong]


def rate(moments: Sequence[float], spans: Sequence[tuple[float, float]]) -> float:
    """Median steps per second over all whole windows of these spans.

    Args:
        moments: seconds at which steps ended, sorted.
        spans: from and to, seconds.

    Raises:
        ValueError: no span has a whole window.
    """
    windows = [
        (start + index * WINDOW, start + (index + 1) * WINDOW)
        for start, end in spans
        for index in range(int((end - start) // WINDOW))
    ]
    if not windows:
        raise ValueError("no span is as long as a window")
    return median(sum(start <= moment < end for moment in moments) / WINDOW for start, end in windows)
