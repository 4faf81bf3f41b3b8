"""When ranks are killed: the law of Clockwork's comparison, in steps instead of hours."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

SECONDS = 2700.0, 4500.0
"""From one fault to the next, there: drawn evenly."""
STEP = 405 * 60 / 3000
"""Seconds of one of their steps: 3,000 took 405 minutes without a fault."""
STEPS = 3000
"""Theirs, and ours."""


@dataclass(frozen=True, slots=True)
class Fault:
    """SIGKILL of one rank."""

    step: int
    """Reached first by any rank."""
    victim: int
    """Its rank."""


def draw(steps: int, ranks: int, seed: int) -> tuple[Fault, ...]:
    """The faults of a training of that many steps: the same for the same seed."""
    chance, at = Random(seed), 0.0  # noqa: S311  # no secret
    faults = []
    while (at := at + chance.uniform(*SECONDS) / STEP) < steps:
        faults.append(Fault(round(at), chance.randrange(ranks)))
    return tuple(faults)


def losses(steps: int, ranks: int, seed: int) -> tuple[Fault, ...]:
    """Half of the ranks, one after the other: evenly over the first three quarters of the steps.

    A victim is a rank of the world that is left at that time, and never rank 0's machine, which has the rendezvous of
    a restart.
    """
    chance, count = Random(seed), ranks // 2  # noqa: S311  # no secret
    every = steps * 3 / 4 / count
    return tuple(
        Fault(round(every * (number + 0.5)), 1 + chance.randrange(ranks - number - 1)) for number in range(count)
    )
