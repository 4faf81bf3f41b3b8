"""Progress of a run in its status: percent of its steps, and the time that is left.

The formulas are in :mod:`elastic_runtime.launcher.record.time_left`.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_PACES = 50
"""World sizes whose pace is in the status."""
MAX_BASIS = 200
"""Characters of :attr:`Progress.basis`."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Measured pace of the worlds of one size in this run, without the time between worlds."""

    ranks: int
    steps: int
    """Steps that were measured, those that were done again included."""
    seconds: float
    """For which they were measured."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a run whose script tells how many steps it has."""

    steps: int
    """Steps of the whole training."""
    percent: float
    """Of these, 0 to 100."""
    seconds: float | None = None
    """Estimated seconds from the status' time to the last step. None: no estimate, or the run is over."""
    least: float | None = None
    """Lower end of the interval, at most :attr:`seconds`. None exactly if that is None."""
    most: float | None = None
    """Upper end of the interval, at least :attr:`seconds`. None exactly if that is None."""
    basis: str = ""
    """Source of the estimate, or why there is none, for people."""
    by_script: bool = False
    """The script has reported :attr:`steps`. False: ``GlobalBatches`` counts them."""


def progress_words(progress: Progress) -> str:
    """Return the progress for a line of text: ``40 % of 3,000 steps, about 12 min left (10 min to 15 min)``."""
    words = f"{progress.percent:.3g} % of {progress.steps:,} steps"
    if progress.seconds is None or progress.least is None or progress.most is None:
        return words
    between = f"{duration_words(progress.least)} to {duration_words(progress.most)}"
    return f"{words}, about {duration_words(progress.seconds)} left ({between})"


def duration_words(seconds: float) -> str:
    """Return a duration in the unit that suits it: seconds, minutes, hours or days."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} days"
