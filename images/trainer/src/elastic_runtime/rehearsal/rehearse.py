"""Runs of one task from many moments of past markets on, and what they come to: time, cost, losses, sizes. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import pairwise
from statistics import fmean

from elastic_runtime.rehearsal.policy import Job, Policy, oracle_rate
from elastic_runtime.rehearsal.simulator import Outcome, simulate
from elastic_runtime.rehearsal.trace import DAY, HOUR, Notices, Trace
from elastic_runtime.rehearsal.window import window

PARTS = 10
"""Into which a run is divided, for its size over time."""
_SLACK = 600.0
"""Seconds that a window goes on after the run's end, so that the last machines have their notices."""
_ROOM = 4.0
"""Window of a first attempt, in times of the run without losses; a window is as many times longer at the next."""


@dataclass(frozen=True, slots=True)
class Tariff:
    """What a machine costs, in US dollars an hour."""

    on_demand: Decimal
    spot: Decimal
    """Where a market has no prices of its own."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is rehearsed: a task's settings, and how much it is to train."""

    job: Job
    """With a number of steps; of its sizes, ``maximum`` and ``fixed`` are both the number of workers asked for."""
    policy: Policy
    notices: Notices

    def with_sizes(self, minimum: int, wanted: int) -> Plan:
        """The same with other numbers of workers."""
        return replace(self, job=replace(self.job, minimum=minimum, maximum=wanted, fixed=wanted))

    @property
    def undisturbed(self) -> float:
        """Seconds with all workers from begin to end, on machines that nobody takes."""
        costs, job = self.policy.costs, self.job
        start = costs.machine_start + costs.worker_start + costs.session_start
        return start + (job.steps or 0) * job.step_work / oracle_rate(job.maximum, job)

    def on_demand(self, tariff: Tariff) -> float:
        """Dollars for that, by the rules of docs/cost.md: workers are paid for from when they can train."""
        paid = self.undisturbed - self.policy.costs.machine_start - self.policy.costs.worker_start
        return paid / HOUR * self.job.maximum * float(tariff.on_demand)


@dataclass(frozen=True, slots=True)
class Run:
    """One rehearsed run."""

    market: str
    start: float
    """Seconds since the market's begin."""
    outcome: Outcome
    cost: float
    """US dollars."""

    @property
    def seconds(self) -> float:
        """To the end of the training; infinite for a run that has not finished it."""
        return self.outcome.seconds if self.outcome.finished else math.inf


@dataclass(frozen=True, slots=True)
class Spread:
    """Of several values."""

    low: float | None
    """10 % are at most this. None: infinite, for runs that do not finish."""
    median: float | None
    high: float | None
    """90 % are at most this."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What many runs come to. Means and costs are of those that finish; None: none does."""

    runs: int
    finished: int
    ends: Mapping[str, int]
    """Runs that did not finish, by the kind of their failure."""
    seconds: Spread
    """From begin to end; a run that does not finish is longer than any that does."""
    cost: Spread
    """US dollars."""
    mean_cost: float | None
    losses: float | None
    """Workers whose machine is taken in a run."""
    announced: float | None
    """Of these with a notice."""
    lost_steps: float | None
    sizes: tuple[float, ...]
    """Workers that train, the mean over each of :data:`PARTS` equal parts of a run."""


def rehearse(
    plan: Plan,
    markets: Sequence[Trace],
    tariff: Tariff,
    *,
    runs: int,
    limit: float,
    done: Callable[[], None] = lambda: None,
) -> list[Run]:
    """Rehearse runs that begin at evenly spaced moments of each market.

    Args:
        plan: of the task.
        markets: traces.
        tariff: prices.
        runs: in each market.
        limit: seconds after which a run that goes on counts as not finished.
        done: called after each.

    Raises:
        InvalidSettings: a market is too short for such a run.
    """
    rehearsed = []
    for market in markets:
        for number in range(runs):
            rehearsed.append(_run(plan, market, market.duration * number / runs, tariff, limit))
            done()
    return rehearsed


def figures(runs: Sequence[Run], limit: float) -> Figures:
    """Sum up what came of runs, of which there is at least one.

    Args:
        runs: with the same plan.
        limit: as :func:`rehearse`.
    """
    finished = [run for run in runs if run.outcome.finished]
    too_long = f"not done after {limit / DAY:g} days"
    ends = Counter(run.outcome.failure or too_long for run in runs if not run.outcome.finished)
    sizes = [sizes_over_time(run.outcome) for run in finished]
    return Figures(
        runs=len(runs),
        finished=len(finished),
        ends=dict(ends.most_common()),
        seconds=spread([run.seconds for run in runs]),
        cost=spread([run.cost for run in finished]),
        mean_cost=_mean(run.cost for run in finished),
        losses=_mean(run.outcome.losses for run in finished),
        announced=_mean(run.outcome.announced for run in finished),
        lost_steps=_mean(run.outcome.lost_steps for run in finished),
        sizes=tuple(fmean(part) for part in zip(*sizes, strict=True)),
    )


def spread(values: Iterable[float]) -> Spread:
    """By nearest rank, so that each is one of the values; None for infinity, and where there are no values."""
    ordered = sorted(values)

    def rank(share: float) -> float | None:
        value = ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.inf
        return value if math.isfinite(value) else None

    return Spread(rank(0.1), rank(0.5), rank(0.9))


def sizes_over_time(outcome: Outcome, parts: int = PARTS) -> list[float]:
    """Mean number of workers that train, in each of so many equal parts of a run."""
    sums = [0.0] * parts
    length = outcome.seconds / parts
    changes = [*((moment, ranks) for moment, _, ranks in outcome.history), (outcome.seconds, 0)]
    for (begin, ranks), (end, _) in pairwise(changes):
        for part in range(parts):
            overlap = min(end, (part + 1) * length) - max(begin, part * length)
            sums[part] += ranks * max(0.0, overlap)
    return [each / length for each in sums] if length else sums


def spot_cost(outcome: Outcome, market: Trace, tariff: Tariff) -> float:
    """US dollars for all workers while they were there: at the market's prices of that time, or the tariff's."""
    prices = market.prices or ((0.0, tariff.spot),)
    moments = sorted({0.0, outcome.seconds, *(at for at, _ in outcome.paid), *(at for at, _ in prices)})
    cost, workers, price = 0.0, 0, prices[0][1]
    hired, asked = dict(outcome.paid), dict(prices)
    for begin, end in pairwise(moments):
        workers, price = hired.get(begin, workers), asked.get(begin, price)
        if begin < outcome.seconds:
            cost += workers * float(price) * (min(end, outcome.seconds) - begin) / HOUR
    return cost


def _run(plan: Plan, market: Trace, start: float, tariff: Tariff, limit: float) -> Run:
    length = min(limit, _ROOM * plan.undisturbed + _SLACK)
    while True:
        past = window(market, start, length)
        outcome = simulate(past, plan.policy, plan.job, plan.notices)
        over = outcome.end is not None or (outcome.finished and outcome.seconds <= length - _SLACK)
        if over or length >= limit:
            return Run(market.name, start, outcome, spot_cost(outcome, past, tariff))
        length = min(limit, _ROOM * length)


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return fmean(known) if known else None
