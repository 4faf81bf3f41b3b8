"""Deadlines on traces: what the launcher's policy pays, against a plan that knows the market to come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal
from statistics import median

from benchmarks.traces.omniscient import cheapest
from elastic_runtime.prices.book import Price
from elastic_runtime.rehearsal.policy import Job, Policy
from elastic_runtime.rehearsal.rehearse import Tariff, spot_cost
from elastic_runtime.rehearsal.scaling import Scaling
from elastic_runtime.rehearsal.simulator import simulate
from elastic_runtime.rehearsal.steering import BEGIN
from elastic_runtime.rehearsal.trace import HOUR, Notices, Trace
from elastic_runtime.rehearsal.window import window
from elastic_runtime.run.deadline import DeadlineSpec

MOST = 1.10
"""Cost against the omniscient plan's in the median, at most."""
TIMES = (1.25, 1.5, 2.0, 3.0)
"""Deadlines, in times of the fastest run: the first leaves it a fifth of the time."""
EFFICIENCIES = (1.0, 0.85)
"""Of the throughput at each doubling: with 1, all sizes cost the same; with 0.85, 16 workers cost 1.9 times as much."""
STARTS = tuple(number / 8 for number in range(8))
"""Moments at which runs begin, as shares of the trace."""
HOURS = 1.5
"""Length of the training with the most workers the trace ever has."""
NOTICES = Notices(1.0, 120.0)


@dataclass(frozen=True, slots=True)
class Steered:
    """One run with a deadline, which begins with one worker."""

    trace: str
    efficiency: float
    times: float
    """Of the fastest run, to the deadline."""
    late: float
    """Seconds after the deadline; negative: in time."""
    dollars: float
    least: float
    """Dollars of the omniscient plan."""

    @property
    def ratio(self) -> float:
        """Cost by the omniscient plan's."""
        return self.dollars / self.least


def steer(
    trace: Trace,
    policy: Policy,
    price: Price,
    *,
    starts: Iterable[float] = STARTS,
    efficiencies: Sequence[float] = EFFICIENCIES,
    times: Sequence[float] = TIMES,
    step_work: float = 16.0,
) -> Iterator[Steered]:
    """Run each deadline. A deadline is feasible if a run that asks for all workers from the begin on makes it.

    Args:
        trace: of the market, repeated after its end.
        policy: of the launcher, with its costs.
        price: of a worker.
        starts: when runs begin, in shares of the trace.
        efficiencies: of the throughput at each doubling.
        times: deadlines, in times of that fastest run.
        step_work: seconds of one worker for a global step.
    """
    for start in starts:
        for efficiency in efficiencies:
            job = Job(1, trace.peak, trace.peak, step_work=step_work, scaling=Scaling(efficiency))
            job = replace(job, steps=round(HOURS * HOUR * job.scaling.rate(trace.peak) / step_work))
            past = window(trace, start * trace.duration, 4 * max(times) * HOURS * HOUR)
            fastest = simulate(past, policy, job, NOTICES).seconds
            for each in times:
                yield _steered(past, policy, replace(job, start=1), price, each, each * fastest)


def _steered(trace: Trace, policy: Policy, job: Job, price: Price, times: float, seconds: float) -> Steered:
    by = DeadlineSpec(by=BEGIN + timedelta(seconds=seconds))
    outcome = simulate(trace, policy, replace(job, deadline=by), NOTICES)
    least = cheapest(trace, job, seconds, float(price.spot))
    assert outcome.finished  # the trace goes on long after the deadline
    assert least is not None  # or there were no fastest run
    dollars = spot_cost(outcome, trace, Tariff(Decimal(price.on_demand), Decimal(price.spot)))
    return Steered(trace.name, job.scaling.efficiency, times, outcome.seconds - seconds, dollars, least)


def as_measures(runs: Sequence[Steered]) -> dict[str, dict[str, object]]:
    """``{deadlines_NAME: {ours, peer, …}}``: the median of the cost against the omniscient plan's, and the misses."""
    return {f"deadlines_{name}": _plain([run for run in runs if run.trace == name]) for name in _names(runs)}


def _plain(runs: Sequence[Steered]) -> dict[str, object]:
    ratios = [run.ratio for run in runs]
    missed = sum(run.late > 0 for run in runs)
    return {
        "ours": round(median(ratios), 4),
        "peer": 1.0,
        "ratio": round(median(ratios), 4),
        "rounds": len(runs),
        "highest": round(max(ratios), 4),
        "missed": missed,
        "target": f"ours <= {MOST:g}, missed 0",
        "met": median(ratios) <= MOST and not missed,
    }


def deadline_lines(runs: Sequence[Steered]) -> list[str]:
    """A row for each trace and efficiency, in Markdown; and each deadline that was missed."""
    lines = [
        "### Deadlines",
        "",
        f"Cost against an omniscient plan's (target: at most {MOST:g} in the median, and no deadline missed).",
        "",
        "| trace | efficiency | deadlines | missed | median | highest |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name in _names(runs):
        for efficiency in dict.fromkeys(run.efficiency for run in runs if run.trace == name):
            some = [run for run in runs if (run.trace, run.efficiency) == (name, efficiency)]
            ratios = [run.ratio for run in some]
            missed = sum(run.late > 0 for run in some)
            cells = (name, efficiency, len(some), missed, f"{median(ratios):.3f}", f"{max(ratios):.3f}")
            lines.append(f"| {' | '.join(map(str, cells))} |")
    late = [run for run in runs if run.late > 0]
    lines += ["", *(f"* missed: {run.trace}, {run.times:g} times the fastest run, by {run.late:.0f} s" for run in late)]
    return lines


def _names(runs: Sequence[Steered]) -> list[str]:
    return list(dict.fromkeys(run.trace for run in runs))
