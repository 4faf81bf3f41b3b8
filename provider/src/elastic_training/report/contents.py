"""Contents of a run's report: the shown part of its status, made small enough. Pure.

Field by field, so that nothing gets into a file which people hand on only because a status has it. The page's own
sources read it: ``Report`` in ``provider/frontend/src/model/types.ts``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from elastic_runtime.documents import EARLIEST, LATEST, time_to_text
from elastic_runtime.engines.exits import describe
from elastic_runtime.run.deadline import MAX_WORDS, deadline_words
from elastic_runtime.run.status import (
    MAX_EVENTS,
    MAX_HISTORY,
    MAX_MESSAGE,
    MAX_REASON,
    MAX_SIZES_ASKED,
    MAX_USAGE,
    EventKind,
    Phase,
    Series,
    Status,
    WorkerState,
    WorkerStatus,
    shortened,
)
from elastic_runtime.run.status_failure import MAX_TRACEBACK
from elastic_runtime.run.status_figures import GpuFigures, Hardware, HardwareColumn
from elastic_runtime.run.status_progress import progress_words
from elastic_training.cost.bill import figures_of
from elastic_training.outcome.result import world_sizes
from elastic_training.outcome.steps import step_text

MOST_CURVES = 40
"""Metrics that are drawn."""
MOST_MACHINES = 32
"""Workers whose hardware is drawn."""
MOST_WORKERS = 100
"""Workers that are listed."""
MOST_SIZES = 12
"""Sizes of worlds in a row."""
_NAME, _URI = 100, 500
_MOST_RANKS, _MOST_GPUS, _MOST_CAUSES = 50, 16, 20
_EXTREMES = 1e-100, 1e100
"""Values below count as 0, and values above are left out: no axis has room for them."""
_SECONDS = tuple(datetime.fromisoformat(f"{year}-01-01T00:00:00+00:00").timestamp() for year in (EARLIEST, LATEST))


@dataclass(frozen=True, slots=True)
class Size:
    """Limits of a report: how much of a status it shows."""

    points: int
    """Points of each curve."""
    workers: int = MOST_WORKERS
    events: int = MAX_EVENTS


SIZES = (*map(Size, (1000, 400, 200, 100, 50, 15)), Size(0, 10, 20))
"""From the largest; the first whose page is small enough is taken."""


def contents(
    status: Status, figures: Mapping[str, str] | None, cost: Mapping[str, Any] | None, size: Size
) -> dict[str, Any]:
    """Return the contents as JSON. Floats that JSON does not have are left out, or None."""
    return {
        "status": _status(status, size),
        "cost": None if cost is None else _bounded(cost),
        "figures": {
            shortened(name, _NAME): shortened(value, _NAME)
            for name, value in {**(figures or {}), **_figures(status), **(figures_of(cost) if cost else {})}.items()
        },
        "why": why(status),
        "left_out": list(_left_out(status, size)),
    }


def _status(status: Status, size: Size) -> dict[str, Any]:
    series = {shortened(name, _NAME): _series(each, size) for name, each in _drawn(status)}
    machines = {name: _hardware(each, size) for name, each in _machines(status)[:MOST_MACHINES]}
    return {
        "run": shortened(status.run, _NAME),
        "uid": shortened(status.uid, _NAME),
        "phase": status.phase,
        "reason": shortened(status.reason, MAX_REASON),
        "updated": time_to_text(status.updated),
        "started": status.started and time_to_text(status.started),
        "finished": status.finished and time_to_text(status.finished),
        "failure": status.failure,
        "timeline": status.timeline and shortened(status.timeline, _URI),
        "world_size": status.world_size,
        "target_size": status.target_size,
        "step": status.step,
        "series": {name: each for name, each in series.items() if each["values"]},
        "throughput": _series(status.throughput, size),
        "sample_throughput": _series(status.sample_throughput, size),
        "hardware": {shortened(name, _NAME): each for name, each in machines.items() if each["times"]},
        "lost_seconds": {
            shortened(cause, _NAME): _number(seconds)
            for cause, seconds in list(status.lost_seconds.items())[:_MOST_CAUSES]
            if _number(seconds) is not None
        },
        "workers": [_worker(each) for each in _present_first(status.workers)[: size.workers]],
        "events": [
            {
                "time": time_to_text(each.time),
                "kind": each.kind,
                "message": shortened(each.message, MAX_MESSAGE),
                "worker": each.worker and shortened(each.worker, _NAME),
                "step": each.step,
            }
            for each in status.events[-size.events :]
        ],
        "history": [
            {"time": time_to_text(each.time), "size": each.size, "step": each.step}
            for each in status.history[-MAX_HISTORY:]
        ],
        "asked": [
            {"time": time_to_text(each.time), "workers": each.workers} for each in status.asked[-MAX_SIZES_ASKED:]
        ],
    }


def _drawn(status: Status) -> list[tuple[str, Series]]:
    """The loss is always among them: the overview begins with it."""
    loss_first = sorted(status.series.items(), key=lambda each: each[0] != "loss")
    kept = {name for name, _ in loss_first[:MOST_CURVES]}
    return [(name, each) for name, each in status.series.items() if name in kept]


def _machines(status: Status) -> list[tuple[str, Hardware]]:
    """Of workers that are present first, then of those that left last."""
    state = {worker.name: worker.state for worker in status.workers}

    def order(each: tuple[str, Hardware]) -> tuple[bool, float]:
        name, hardware = each
        newest = hardware.times[-1] if hardware.times else 0.0
        return state.get(name, WorkerState.LOST).gone, -newest if _is_time(newest) else 0.0

    return sorted(status.hardware.items(), key=order)


def _present_first(workers: Sequence[WorkerStatus]) -> list[WorkerStatus]:
    return sorted(workers, key=lambda worker: worker.state.gone)


def _is_time(seconds: float) -> bool:
    return _SECONDS[0] <= seconds < _SECONDS[1]


def _number(value: float | None) -> float | None:
    least, most = _EXTREMES
    if value is None or not abs(value) < most:  # nan is less than nothing
        return None
    return value if abs(value) >= least else 0.0


def _series(series: Series, size: Size) -> dict[str, Any]:
    points = [
        (step, time, drawn)
        for step, time, value in zip(series.steps, series.times, series.values, strict=False)
        if abs(step) < 2**53 and _is_time(time) and (drawn := _number(value)) is not None
    ]
    kept = [points[at] for at in _chosen(len(points), size.points)]
    return {
        "steps": [each[0] for each in kept],
        "times": [each[1] for each in kept],
        "values": [each[2] for each in kept],
    }


def _hardware(hardware: Hardware, size: Size) -> dict[str, Any]:
    known = [at for at, time in enumerate(hardware.times) if _is_time(time)]
    kept = [known[at] for at in _chosen(len(known), size.points)]
    columns = {
        column: [_number(values[at]) if at < len(values) else None for at in kept]
        for column in HardwareColumn
        if (values := hardware.columns.get(column))
    }
    return {"times": [hardware.times[at] for at in kept], "columns": columns}


def _chosen(count: int, most: int) -> list[int]:
    """At most so many of so many places, at even distances, the last among them."""
    if not count or not most:
        return []
    every = -(-count // most)
    return list(range((count - 1) % every, count, every))


def _worker(worker: WorkerStatus) -> dict[str, Any]:
    return {
        "name": shortened(worker.name, _NAME),
        "node": shortened(worker.node, _NAME),
        "state": worker.state,
        "slots": worker.slots,
        "ranks": worker.ranks[:_MOST_RANKS],
        "seconds": _number(worker.seconds),
        "cpu_percent": _number(worker.cpu_percent),
        "memory_bytes": worker.memory_bytes,
        "memory_limit_bytes": worker.memory_limit_bytes,
        "capacity_type": worker.capacity_type and shortened(worker.capacity_type, _NAME),
        "instance_type": worker.instance_type and shortened(worker.instance_type, _NAME),
        "receive_bytes_per_second": _number(worker.receive_bytes_per_second),
        "transmit_bytes_per_second": _number(worker.transmit_bytes_per_second),
        "step_seconds": _number(worker.step_seconds),
        "step_skew": _number(worker.step_skew),
        "gpus": [_gpu(each) for each in worker.gpus[:_MOST_GPUS]],
    }


def _gpu(gpu: GpuFigures) -> dict[str, Any]:
    return {
        "index": gpu.index,
        "name": shortened(gpu.name, _NAME),
        "percent": _number(gpu.percent),
        "memory_bytes": gpu.memory_bytes,
        "memory_total_bytes": gpu.memory_total_bytes,
    }


def _bounded(value: Any) -> Any:
    """Of what a caller, or a file in a store, has given."""
    match value:
        case str():
            return shortened(value, _NAME)
        case float():
            return _number(value)
        case Mapping():
            return {shortened(str(key), _NAME): _bounded(each) for key, each in list(value.items())[:MAX_USAGE]}
        case list() | tuple():
            return [_bounded(each) for each in value[:MAX_USAGE]]
    return value


def _left_out(status: Status, size: Size) -> Iterable[str]:
    """Yield a sentence for each part of the status that the report leaves out because of its size."""
    metrics, machines, workers = len(status.series), len(status.hardware), len(status.workers)
    counted = [
        *(len(each.steps) for each in (status.throughput, status.sample_throughput, *status.series.values())),
        *(len(each.times) for each in status.hardware.values()),
    ]
    if not size.points and any(counted):
        yield "This run's curves are left out: with them, the report would be too large."
    elif max(counted, default=0) > size.points:
        yield f"Curves are thinned to at most {size.points} points each."
    if size.points and metrics > MOST_CURVES:
        yield f"{metrics - MOST_CURVES} of {metrics} metrics are left out."
    if size.points and machines > MOST_MACHINES:
        yield f"The hardware of {machines - MOST_MACHINES} of {machines} workers is left out."
    if workers > size.workers:
        yield f"{workers - size.workers} of {workers} workers are not listed."
    if len(status.events) > size.events:
        yield f"Only the newest {size.events} events are listed."


def _figures(status: Status) -> dict[str, str]:
    sizes = world_sizes(status)
    shown = [*(["…"] if len(sizes) > MOST_SIZES else []), *map(str, sizes[-MOST_SIZES:])]
    figures = {"world sizes": " → ".join(shown) or "–"}
    if not status.phase.final:
        figures["workers asked for"] = str(status.target_size)
    figures["newest step"] = step_text(status.step, trained=status.started is not None, none="–")
    if status.progress is not None:
        figures["progress"] = shortened(progress_words(status.progress), _NAME)
    if status.deadline is not None and (words := deadline_words(status.deadline)):
        figures["deadline"] = shortened(words, MAX_WORDS)
    figures |= {f"newest {shortened(name, _NAME)}": f"{value:.4g}" for name, value in list(status.metrics.items())[:4]}
    figures["worker time"] = _duration(sum(status.worker_seconds.values()))
    if status.usage:
        figures["of it idle"] = _duration(sum(each.idle_seconds for each in status.usage))
    figures["ranks failed / worlds lost"] = f"{status.rank_failures} / {status.forced_resets}"
    if status.checkpoint is not None:
        figures["newest checkpoint"] = f"step {status.checkpoint.step:,}"
    return figures


def _duration(seconds: float) -> str:
    """Format seconds as ``12.3 s``, or from ten minutes on as ``1:02:03``."""
    if abs(seconds) < 600:
        return f"{seconds:.1f} s"
    return str(timedelta(seconds=round(seconds))) if abs(seconds) < 1e12 else "∞"


def why(status: Status) -> dict[str, str] | None:
    """Why a run has failed, for its report and its page.

    Returns:
        ``who`` (``Rank 1 on worker-0``; empty: not known), ``message`` (what was raised, or the reason of the run's
        end), ``details`` (step, exit code, time), and ``traceback``: its last characters, if it is too long, because
        what was raised stands at the end. None: the run has not failed, or nothing is known beyond its reason.
    """
    if status.phase is not Phase.FAILED:
        return None
    if first := status.first_failure:
        step = "" if first.step is None else f"at step {first.step:,}, "
        details = f"{step}ended with {describe(first.exit_code)}, {first.time:%Y-%m-%d %H:%M:%S} UTC"
        cut = first.traceback if len(first.traceback) <= MAX_TRACEBACK else f"…{first.traceback[1 - MAX_TRACEBACK :]}"
        who, message = _capital(shortened(first.who, 200)), shortened(first.message, MAX_REASON)
        return {"who": who, "message": message, "details": details, "traceback": cut}
    failed = next((event for event in status.events if event.kind is EventKind.RANK_FAILED), None)
    if failed is None:
        return None
    message = _capital(shortened(f"{failed.message}{f' on {failed.worker}' if failed.worker else ''}", 400))
    step = "" if failed.step is None else f"after step {failed.step:,}, "
    return {"who": "", "message": message, "details": f"{step}{failed.time:%Y-%m-%d %H:%M:%S} UTC", "traceback": ""}


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
