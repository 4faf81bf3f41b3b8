"""What is trained, and by which rules it goes on when workers come and go."""

from __future__ import annotations

from dataclasses import dataclass, field

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.rehearsal.costs import Costs
from elastic_runtime.rehearsal.scaling import Scaling
from elastic_runtime.run.deadline import DeadlineSpec
from elastic_runtime.run.spec import RecoveryMode


@dataclass(frozen=True, slots=True)
class Policy:
    """Rules of a launcher and its engine."""

    costs: Costs
    mode: RecoveryMode = RecoveryMode.ELASTIC
    listens: bool = True
    """Whether it hears notices."""
    in_place: bool = True
    """Whether survivors keep their state over a change."""
    gather: float = 10.0
    """As :attr:`elastic_runtime.launcher.decision.facts.DecisionSettings.gather`."""


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
    start_timeout: float | None = None
    """As there. None: no limit."""
    reset_limit: int | None = None
    """As there."""
    steps: int | None = None
    """Global steps after which the run ends. None: it trains to the end of the trace."""
    durable: bool = True
    """Whether there is a store for checkpoints."""
    deadline: DeadlineSpec | None = None
    """Sets the number of workers between minimum and maximum, with :attr:`steps`. Its moment counts from
    :data:`.steering.BEGIN`. None: the maximum is asked for all the time."""
    start: int | None = None
    """Workers asked for at first, with a deadline. None: the maximum."""

    def __post_init__(self) -> None:
        if not 1 <= self.minimum <= self.fixed <= self.maximum:
            problem = f"min {self.minimum}, fixed {self.fixed}, max {self.maximum} are out of order"
            raise InvalidSettings("workers", problem, "Write 1 <= min <= fixed <= max")
        if self.step_work <= 0:
            raise InvalidSettings("step", f"{self.step_work} is not above 0", "Write seconds of one worker")
        if self.deadline is not None and self.steps is None:
            raise InvalidSettings("deadline", "the number of steps is not known", "Write steps")


def oracle_rate(machines: int, job: Job) -> float:
    """Of as many as are there, up to the maximum; nothing below the minimum."""
    return job.scaling.rate(min(machines, job.maximum)) if machines >= job.minimum else 0.0
