"""The section of the results: figures for programs, tables for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from benchmarks.traces.bill import bill
from benchmarks.traces.costs import Priced
from benchmarks.traces.policy import PolicyName
from benchmarks.traces.replays import Replay
from elastic_runtime.prices.book import Price
from elastic_runtime.rehearsal.account import Cause
from elastic_runtime.rehearsal.simulator import Outcome
from elastic_runtime.rehearsal.trace import HOUR, Trace

TARGET = 0.95
"""Least goodput that is to be reached (:func:`has_target`)."""
TITLES: Mapping[PolicyName, str] = {
    PolicyName.ELASTIC: "ours, elastic",
    PolicyName.FIXED: "ours, fixed",
    PolicyName.STOCK: "Elastic Horovod",
    PolicyName.RESTART: "restart on every change",
}


def has_target(trace: Trace) -> bool:
    """Whether it is as the goal says: 0.6 losses per node-hour (a tenth more or less), 16 to 32 machines."""
    machines = [count for moment, count in trace.levels() if moment < trace.duration]
    return 0.54 <= trace.losses_per_node_hour <= 0.66 and min(machines) >= 16 and max(machines) <= 32


def as_measures(replays: Iterable[Replay], price: Price) -> dict[str, dict[str, object]]:
    """``{trace_NAME_CASE: {ours, peer, ratio, rounds, …}}``: goodput of ours, elastic, and of Elastic Horovod."""
    return {f"trace_{each.trace.name}_{each.case.key}": _plain(each, price) for each in replays}


def _plain(replay: Replay, price: Price) -> dict[str, object]:
    ours, peer = replay.outcomes[PolicyName.ELASTIC], replay.outcomes[PolicyName.STOCK]
    target = TARGET if has_target(replay.trace) else None
    return {
        "ours": _round(ours.goodput),
        "peer": _round(peer.goodput),
        "ratio": _round(ours.goodput / peer.goodput) if peer.goodput else None,
        "rounds": 1,
        "unit": "share of the oracle's work",
        "others": {
            name: _round(outcome.goodput) for name, outcome in replay.outcomes.items() if outcome not in (ours, peer)
        },
        "lost_steps": {name: outcome.lost_steps for name, outcome in replay.outcomes.items()},
        "missed": {cause: _round(work / ours.account.oracle) for cause, work in sorted(ours.account.missed.items())},
        "cost_ratio": {
            name: ratio and _round(ratio)
            for name, outcome in replay.outcomes.items()
            for ratio in (bill(outcome, replay.trace, replay.job, price).ratio,)
        },
        "target": f"ours >= {target}" if target else None,
        "met": ours.goodput >= target if target else None,
    }


def trace_lines(trace: Trace, replays: Sequence[Replay], price: Price) -> list[str]:
    """What came of one trace, in Markdown."""
    job = replays[0].job
    rate = trace.losses_per_node_hour
    return [
        f"### {trace.name}",
        "",
        f"{trace.duration / HOUR:.1f} h, {trace.node_seconds / HOUR:.0f} node-hours, at most {trace.peak} machines, "
        f"{len(trace.losses)} losses ({rate:.2f} per node-hour). "
        f"{job.minimum} to {job.maximum} workers; fixed: {job.fixed}.",
        "",
        *_goodput(replays),
        "",
        *_lost_steps(replays),
        "",
        *_causes(replays),
        "",
        *_cost(replays, price),
    ]


def _goodput(replays: Sequence[Replay]) -> list[str]:
    wanted = has_target(replays[0].trace)
    head = f"Goodput (target for ours, elastic: {TARGET})" if wanted else "Goodput"
    rows = [f"| {head} | {' | '.join(each.case.title for each in replays)} |", "| --- |" + " --- |" * len(replays)]
    for name, title in TITLES.items():
        cells = []
        for each in replays:
            goodput = each.outcomes[name].goodput
            missed = wanted and name is PolicyName.ELASTIC and goodput < TARGET
            cells.append(f"**{goodput:.3f}**" if missed else f"{goodput:.3f}")
        rows.append(f"| {title} | {' | '.join(cells)} |")
    return rows


def _lost_steps(replays: Sequence[Replay]) -> list[str]:
    titles = " | ".join(each.case.title for each in replays)
    rows = [f"| Steps lost, of those kept | {titles} |", "| --- |" + " --- |" * len(replays)]
    for name, title in TITLES.items():
        cells = [f"{each.outcomes[name].lost_steps} of {each.outcomes[name].steps}" for each in replays]
        rows.append(f"| {title} | {' | '.join(cells)} |")
    return rows


def _causes(replays: Sequence[Replay]) -> list[str]:
    """Of ours, elastic: what share of the oracle's work went where, and how long nobody trained."""
    ours = [(each.case.title, each.outcomes[PolicyName.ELASTIC]) for each in replays]
    causes = [cause for cause in Cause if any(outcome.account.missed.get(cause) for _, outcome in ours)]
    titles = " | ".join(title for title, _ in ours)
    rows = [f"| Ours, elastic: missed of the oracle's work | {titles} |", "| --- |" + " --- |" * len(ours)]
    for cause in causes:
        cells = [_missed(outcome, cause) for _, outcome in ours]
        rows.append(f"| {cause} | {' | '.join(cells)} |")
    return rows


def _missed(outcome: Outcome, cause: Cause) -> str:
    share = 100 * outcome.account.missed.get(cause, 0.0) / outcome.account.oracle
    seconds = outcome.account.paused.get(cause)
    return f"{share:.2f} %" + (f" ({seconds:.0f} s)" if seconds else "")


def _cost(replays: Sequence[Replay], price: Price) -> list[str]:
    """Of all policies, in the first case."""
    first = replays[0]
    rows = [
        f"| Cost with {price.instance}, {first.case.title} | spot | the same work on demand | ratio |",
        "| --- | --- | --- | --- |",
    ]
    for name, title in TITLES.items():
        cost = bill(first.outcomes[name], first.trace, first.job, price)
        ratio = "—" if cost.ratio is None else f"{cost.ratio:.2f}"
        rows.append(f"| {title} | ${cost.spot:.2f} | ${cost.on_demand:.2f} | {ratio} |")
    return rows


def head_lines(ours: Priced, peer: Priced, price: Price, step_work: float) -> list[str]:
    """What all traces have in common."""
    return [
        "## Spot traces",
        "",
        "Written by `make bench-traces`: simulated, not run. The launcher's real `decide` on virtual time; what each",
        "row and cause means, and what the model leaves out: [README.md](README.md#spot-traces). Goodput is the work",
        "done and kept as a share of what an oracle with free, instant resizes does on the same machines. Seconds in",
        "brackets: nobody trained. Bold: the target is missed.",
        "",
        f"* a global step is {step_work:g} s of one worker, a commit in memory at each",
        f"* costs of ours: {', '.join(ours.lines())}",
        f"* costs of the peers: {', '.join(peer.lines())}",
        f"* prices: {price.name} in {price.region}, ${price.on_demand:g} on demand, ${price.spot:g} spot an hour, "
        f"{price.date} ({price.source})",
        "",
    ]


def sensitivity_lines(rows: Sequence[tuple[str, Replay]]) -> list[str]:
    """What becomes of the goodput when the assumptions are others.

    Args:
        rows: what is different, and what came of it.
    """
    if not rows:
        return []
    first = rows[0][1]
    lines = [
        f"### If the costs were others: {first.trace.name}, {first.case.title}",
        "",
        f"| Goodput | {' | '.join(TITLES.values())} |",
        "| --- |" + " --- |" * len(TITLES),
    ]
    for title, each in rows:
        cells = [f"{each.outcomes[name].goodput:.3f}" for name in TITLES]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return lines


def _round(value: float) -> float:
    return round(value, 4)
