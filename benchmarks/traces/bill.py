"""What a simulated run costs by a price book."""

from __future__ import annotations

from dataclasses import dataclass

from elastic_runtime.prices.book import Price
from elastic_runtime.rehearsal.policy import Job
from elastic_runtime.rehearsal.simulator import Outcome
from elastic_runtime.rehearsal.trace import HOUR, Trace


@dataclass(frozen=True, slots=True)
class Bill:
    """Dollars, for the work that a run did and kept."""

    spot: float
    """All machines of the trace, from their first moment to their last."""
    on_demand: float
    """As many machines as the trace has at most, at full rate for as long as that work takes, nothing ever lost."""

    @property
    def ratio(self) -> float | None:
        """Spot by on-demand; None when nothing was trained."""
        return self.spot / self.on_demand if self.on_demand else None


def bill(outcome: Outcome, trace: Trace, job: Job, price: Price) -> Bill:
    """What a run cost, and what the same work costs on machines that nobody takes."""
    on_demand_hours = outcome.useful / job.scaling.rate(job.maximum) * job.maximum / HOUR
    return Bill(trace.node_seconds / HOUR * float(price.spot), on_demand_hours * float(price.on_demand))
