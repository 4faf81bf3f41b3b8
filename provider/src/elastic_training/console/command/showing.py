"""How runs are told of at a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime

from elastic_runtime.documents import to_plain
from elastic_runtime.run.deadline import deadline_words
from elastic_runtime.run.status import Status
from elastic_runtime.run.status_failure import without_quotes
from elastic_runtime.run.status_progress import progress_words
from elastic_training.console.command.output import fit, print_json, print_line, print_table, time_text
from elastic_training.console.places import FoundRun, Listing, plain_run
from elastic_training.outcome.steps import step_text

_EVENTS = 10
_TRACEBACK = 40
"""Lines of it, the last."""


def print_runs(seen: Listing, *, as_json: bool) -> None:
    """Print a table of the runs that were found, or their JSON, and the places that did not answer."""
    if as_json:
        unreachable = [asdict(each) for each in seen.unreachable]
        runs = [plain_run(each) for each in seen.runs]
        for each in runs:  # What ranks have said, and which of it is secret, "show" knows.
            each["reason"] = without_quotes(each["reason"])
        print_json({"runs": runs, "unreachable": unreachable})
        return
    if not seen.runs:
        print_line("no runs")
        return
    rows = [
        (
            each.ref.name,
            each.place,
            each.headline.phase,
            each.headline.world_size,
            each.headline.target_size,
            _step(each.headline.step, each.headline.started),
            time_text(each.headline.started),
            _task(each),
        )
        for each in seen.runs
    ]
    print_table(("NAME", "PLACE", "PHASE", "RANKS", "WORKERS", "STEP", "STARTED", "TASK"), rows)


def print_run(each: FoundRun, status: Status, *, as_json: bool) -> None:
    """Print everything about one run: facts, workers and events; or its status as JSON."""
    if as_json:
        print_json({**plain_run(each), "status": to_plain(status)})
        return
    for name, value in _facts(each, status):
        print_line(f"{name + ':':12}{fit(value)}")
    if status.workers:
        print_line("")
        rows = [(w.name, w.state, ",".join(map(str, w.ranks)), w.node, _percent(w.cpu_percent)) for w in status.workers]
        print_table(("WORKER", "STATE", "RANKS", "NODE", "CPU"), rows)
    if status.events:
        print_line("")
        told = status.events[-_EVENTS:]
        print_table(("TIME", "EVENT", "WHAT"), [(time_text(event.time), event.kind, event.message) for event in told])
    if status.first_failure is not None and status.first_failure.traceback:
        print_line("")
        for line in status.first_failure.traceback.splitlines()[-_TRACEBACK:]:
            print_line(f"  {line}")  # So that no line of it looks like one of these.


def print_end(name: str, status: Status) -> None:
    """Print how a run has ended: phase and why, its step, and its last figures."""
    print_line(f"run {name}: {status.phase}: {status.reason}")
    told = [f"step {_step(status.step, status.started)}", f"generation {status.generation}"]
    told += [f"{each} {value:.4g}" for each, value in status.metrics.items()]
    print_line(f"run {name}: {', '.join(told)}; more: elastic-training show {name}")


def _facts(each: FoundRun, status: Status) -> Iterator[tuple[str, object]]:
    yield "run", each.ref.name
    yield "place", each.place
    yield "task", _task(each)
    yield "phase", f"{status.phase}: {status.reason}"
    if status.first_failure is not None:
        yield "failed", status.first_failure.summary
    yield "world", f"{status.world_size} ranks; {status.target_size} workers asked for"
    step = _step(status.step, status.started)
    yield "step", f"{step}: the script reports none" if status.tells_no_step else step
    if status.progress is not None:
        yield "progress", "; ".join(filter(None, (progress_words(status.progress), status.progress.basis)))
    if status.deadline is not None:
        yield "deadline", deadline_words(status.deadline)
    if status.metrics:
        yield "metrics", ", ".join(f"{name} {value:.4g}" for name, value in status.metrics.items())
    for name in ("started", "updated", "finished"):
        yield name, time_text(getattr(status, name))
    if lost := {cause: seconds for cause, seconds in status.lost_seconds.items() if seconds > 0}:
        yield "lost", ", ".join(f"{cause.replace('_', ' ')} {seconds:.1f} s" for cause, seconds in lost.items())
    if status.checkpoint is not None:
        yield "checkpoint", f"step {status.checkpoint.step} in {status.checkpoint.uri}"


def _step(step: int | None, started: datetime | None) -> object:
    return step_text(None, trained=started is not None, none="-") if step is None else step


def _percent(value: float | None) -> str | None:
    return None if value is None else f"{value:.0f} %"


def _task(each: FoundRun) -> str | None:
    if (owner := each.owner) is None:
        return None
    index = "" if owner.map_index < 0 else f"[{owner.map_index}]"
    return f"{owner.dag_id}.{owner.task_id}{index} {owner.run_id}"
