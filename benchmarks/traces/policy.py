"""Who replays a trace: our launcher in both of its modes, and what it is compared with."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

from benchmarks.traces.costs import Costs
from benchmarks.traces.scaling import Scaling
from benchmarks.traces.trace import Trace
from elastic_runtime.errors import InvalidSettings
from elastic_runtime.run.spec import RecoveryMode


class PolicyName(StrEnum):
    """Keys of the results."""

    ELASTIC = "elastic"
    """Ours, ``Recovery(mode="elastic")``: with whatever is there between minimum and maximum."""
    FIXED = "fixed"
    """Ours, ``Recovery(mode="fixed")``: with exactly so many, the best number in hindsight; others are to spare."""
    STOCK = "stock"
    """Elastic Horovod by itself: the same worlds at its own costs; it hears no notice."""
    RESTART = "restart"
    """Horovod without elasticity: on every change all ranks end, and start again from the newest durable checkpoint."""


@dataclass(frozen=True, slots=True)
class Policy:
    """One of them."""

    name: PolicyName
    costs: Costs
    mode: RecoveryMode = RecoveryMode.ELASTIC
    listens: bool = True
    """Whether it hears notices."""
    in_place: bool = True
    """Whether survivors keep their state over a change."""
    gather: float = 10.0
    """As :attr:`elastic_runtime.launcher.decision.facts.DecisionSettings.gather`."""


def policies(ours: Costs, peer: Costs) -> tuple[Policy, ...]:
    """All of them, with the costs of either side."""
    return (
        Policy(PolicyName.ELASTIC, ours),
        Policy(PolicyName.FIXED, ours, RecoveryMode.FIXED),
        Policy(PolicyName.STOCK, peer, listens=False),
        Policy(PolicyName.RESTART, peer, listens=False, in_place=False, gather=0.0),
    )


@dataclass(frozen=True, slots=True)
class Job:
    """What is trained."""

    minimum: int
    """Fewest workers of a world; the oracle's, too."""
    maximum: int
    """Most workers; the oracle's, too."""
    fixed: int
    """Workers in fixed mode."""
    step_work: float = 16.0
    """Seconds that one worker alone would take for a global step: a second with 16."""
    scaling: Scaling = field(default_factory=Scaling)
    max_wait: float = 365 * 86400.0
    """As :attr:`elastic_runtime.run.spec.RecoverySpec.max_wait`. By default, there is no limit."""

    def __post_init__(self) -> None:
        if not 1 <= self.minimum <= self.fixed <= self.maximum:
            problem = f"min {self.minimum}, fixed {self.fixed}, max {self.maximum} are out of order"
            raise InvalidSettings("workers", problem, "Write 1 <= min <= fixed <= max")
        if self.step_work <= 0:
            raise InvalidSettings("step", f"{self.step_work} is not above 0", "Write seconds of one worker")


def oracle_levels(trace: Trace, job: Job) -> list[tuple[float, float]]:
    """The oracle's rate from which moment on: every machine trains from its first moment to its last."""
    return [(moment, oracle_rate(count, job)) for moment, count in trace.levels()]


def oracle_rate(machines: int, job: Job) -> float:
    """Of as many as are there, up to the maximum; nothing below the minimum."""
    return job.scaling.rate(min(machines, job.maximum)) if machines >= job.minimum else 0.0


def best_fixed_size(trace: Trace, minimum: int, scaling: Scaling) -> int:
    """The number of workers that would have trained most, had they trained whenever there were that many."""
    levels = [*trace.levels(), (trace.duration, 0)]
    seconds = [(count, end - begin) for (begin, count), (end, _) in pairwise(levels)]

    def trained(size: int) -> float:
        return scaling.rate(size) * sum(length for count, length in seconds if count >= size)

    return max(range(minimum, max(trace.peak, minimum) + 1), key=trained)


def job_for(
    trace: Trace, *, minimum: int | None = None, maximum: int | None = None, scaling: Scaling | None = None
) -> Job:
    """Of the size of the trace: at most as many workers as it ever has machines, at least a quarter of that."""
    scaling = scaling or Scaling()
    maximum = maximum or trace.peak
    minimum = minimum or max(1, maximum // 4)
    return Job(minimum, maximum, min(best_fixed_size(trace, minimum, scaling), maximum), scaling=scaling)
