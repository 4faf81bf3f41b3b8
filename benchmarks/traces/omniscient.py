"""The cheapest plan that makes a deadline, by somebody who knows the market to come. A lower bound of every policy."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from elastic_runtime.rehearsal.policy import Job
from elastic_runtime.rehearsal.trace import HOUR, Trace


def cheapest(trace: Trace, job: Job, seconds: float, price: float) -> float | None:
    """Return the dollars of the cheapest sizes over time that do a job's steps by then. None: no sizes do.

    Resizes, starts and pauses take no time and cost nothing, workers are paid for only while they train, and a part of
    a second is as good as a whole one. Then the plan is a fractional knapsack. At each moment the first
    ``job.minimum`` workers, and each further one up to the machines that are there, are an item: work a second, at
    dollars a second. Throughput is concave, so that a worker is never better value than those before it. Thus, taking
    the items with the most work for a dollar until the work is done gives sizes that can be had, and no others are
    cheaper (Dantzig, *Discrete-Variable Extremum Problems*, Operations Research 5, 1957).

    Args:
        trace: of the machines, from the run's begin on.
        job: with a number of steps.
        seconds: to the deadline.
        price: of a worker, in dollars an hour, where the trace has none of its own.
    """
    left, dollars = (job.steps or 0) * job.step_work, 0.0
    for rate, cost, length in sorted(_items(trace, job, seconds, price), key=lambda item: item[1] / item[0]):
        part = min(1.0, left / (rate * length))
        left -= part * rate * length
        dollars += part * cost * length
        if part < 1.0:
            return dollars
    return None if left > 0 else dollars


def _items(trace: Trace, job: Job, seconds: float, price: float) -> Iterator[tuple[float, float, float]]:
    """Work a second, dollars a second, and seconds."""
    machines, prices = dict(trace.levels()), dict(trace.prices)
    there, asked = 0, price
    moments = {0.0, seconds, *machines, *prices}
    for begin, end in pairwise(sorted(each for each in moments if each <= seconds)):
        there, asked = machines.get(begin, there), float(prices.get(begin, asked))
        before, rate = 0, 0.0
        for workers in range(job.minimum, min(there, job.maximum) + 1):
            faster = job.scaling.rate(workers)
            yield faster - rate, (workers - before) * asked / HOUR, end - begin
            before, rate = workers, faster
