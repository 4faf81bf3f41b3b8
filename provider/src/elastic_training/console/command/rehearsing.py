"""Rehearses a task, and prints what came of it."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from elastic_runtime.documents import to_plain
from elastic_runtime.rehearsal.alternatives import Sizes
from elastic_runtime.rehearsal.rehearse import Figures
from elastic_runtime.rehearsal.trace import HOUR
from elastic_training.console.command.exit_status import DONE
from elastic_training.console.command.output import print_json, print_line, print_table
from elastic_training.console.command.rehearsal import Rehearsal, rehearsed

_HEAD = ("10 %", "MEDIAN", "90 %", "FINISH", "COST", "LOSSES", "STEPS LOST")


def carry_out(arguments: Namespace) -> int:
    """Rehearse. Returns the exit status; raises the errors of what is read."""
    print_rehearsal(rehearsed(arguments), as_json=arguments.json)
    return DONE


def print_rehearsal(done: Rehearsal, *, as_json: bool) -> None:
    """Print end times, cost, losses and sizes of the task's own settings, and of better ones; or all of it as JSON."""
    if as_json:
        print_json(_plain(done))
        return
    own = done.figures()
    for line in _lines(done):
        print_line(line)
    print_line("")
    sizes = Sizes(done.plan.job.minimum, done.plan.job.maximum)
    rows = [(_workers(done, sizes), *_row(own), "as it is")]
    rows += [(_workers(done, each.sizes), *_row(each.figures), each.title) for each in done.alternatives]
    print_table(("SETTINGS", *_HEAD, ""), rows)
    if not done.alternatives:
        print_line(f"none of {done.tried} other sizes is better by 5 %")
    print_line("")
    markets = dict.fromkeys(run.market for run in done.runs)
    print_table(("MARKET", *_HEAD), [(market, *_row(done.figures(market))) for market in markets])
    print_line("")
    for line in _more(done, own):
        print_line(line)


def _lines(done: Rehearsal) -> Iterator[str]:
    job, policy, notices = done.plan.job, done.plan.policy, done.plan.notices
    yield f"rehearsal of {done.title}: {job.steps} steps, {_hours((job.steps or 0) * job.step_work)} of one worker"
    wait = f"max_wait {_hours(job.max_wait)}"
    store = f"a checkpoint every {policy.costs.checkpoint_every:g} s" if job.durable else "no checkpoints"
    notice = f"notices {notices.deadline:g} s ahead" if notices.share else "no notices"
    yield f"{policy.mode}, {wait}, {store}, {notice}"
    for note in done.notes:
        yield f"* {note}"


def _more(done: Rehearsal, own: Figures) -> Iterator[str]:
    if own.sizes:
        yield f"workers that train, by tenths of a run: {' '.join(f'{each:.1f}' for each in own.sizes)}"
    for reason, count in own.ends.items():
        yield f"{count} of {own.runs} runs do not finish: {reason}; Airflow's retries, which resume, are not rehearsed"
    dollars, steady = done.plan.on_demand(done.tariff), _hours(done.plan.undisturbed)
    saving = ""
    if own.mean_cost is not None and dollars:
        saving = f"; spot costs {100 * (1 - own.mean_cost / dollars):.0f} % less in the mean, ${own.mean_cost:.2f}"
    yield f"on demand, with nothing lost: {steady}, ${dollars:.2f}{saving}"


def _row(each: Figures) -> tuple[object, ...]:
    return (
        _hours(each.seconds.low),
        _hours(each.seconds.median),
        _hours(each.seconds.high),
        f"{each.finished}/{each.runs}",
        None if each.mean_cost is None else f"${each.mean_cost:.2f}",
        None if each.losses is None else f"{each.losses:.1f}",
        None if each.lost_steps is None else f"{each.lost_steps:.1f}",
    )


def _workers(done: Rehearsal, sizes: Sizes) -> str:
    most = max(done.workers.maximum, sizes.wanted)
    return f"min={sizes.minimum}, start={sizes.wanted}, max={most}"


def _hours(seconds: float | None) -> str:
    if seconds is None:
        return "never"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if seconds < HOUR else f"{minutes // 60} h {minutes % 60:02} min"


def _plain(done: Rehearsal) -> dict[str, Any]:
    markets = dict.fromkeys(run.market for run in done.runs)
    job = done.plan.job
    return {
        "task": done.title,
        "steps": job.steps,
        "settings": {"min": job.minimum, "start": job.maximum, "max": done.workers.maximum},
        "notes": list(done.notes),
        "figures": to_plain(done.figures()),
        "alternatives": [to_plain(each) for each in done.alternatives],
        "markets": {market: to_plain(done.figures(market)) for market in markets},
        "on_demand": {"seconds": done.plan.undisturbed, "cost": done.plan.on_demand(done.tariff)},
    }
