"""A run's report: one HTML page, drawn from its status alone, that needs nothing else, not even a network.

Drawn by hand as inline SVG: the plotting libraries that embed themselves add megabytes of script for a few lines.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from importlib.resources import files
from typing import Any, Self

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from elastic_runtime.engines.exits import describe
from elastic_runtime.run.status import (
    MAX_EVENTS,
    MAX_MESSAGE,
    MAX_REASON,
    EventKind,
    Phase,
    Status,
    WorkerStatus,
    shortened,
)
from elastic_runtime.run.status_failure import MAX_TRACEBACK
from elastic_runtime.run.status_figures import GpuFigures, LostTime
from elastic_training.cost.bill import figures_of
from elastic_training.outcome.result import world_sizes
from elastic_training.outcome.steps import UNKNOWN, step_text
from elastic_training.report.chart import Clock, category_of, step_chart, time_chart
from elastic_training.report.hardware import hardware_charts, size_text

MOST_CURVES = 12
"""Metrics that are drawn."""
MOST_WORKERS = 100
"""Workers that are listed."""
MOST_SIZES = 12
"""Sizes of worlds in a row."""
_NAME = 100
_MOST_RANKS, _MOST_GPUS, _MOST_CAUSES = 50, 16, 20
_FEW = 20
"""Workers and events of a page that would be too large, which has no curves, either."""
MOST_BYTES = 1 << 20
_UNPRINTABLE = re.compile(r"[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 does not allow, or discourages."""


def render_report(
    status: Status, figures: Mapping[str, str] | None = None, cost: Mapping[str, Any] | None = None
) -> str:
    """The page as HTML that is well-formed XML, too; less than 1 MiB, whatever the status holds.

    Args:
        status: of a run in any phase.
        figures: of the caller's own: value by what it is. Shown first.
        cost: as the result document has it (:func:`elastic_training.cost.bill.plain_bill`). None: it is not shown.
    """
    page = _page(status, figures, cost)
    if len(page.encode(errors="replace")) >= MOST_BYTES:
        few = status.workers[:_FEW], status.events[-_FEW:]
        page = _page(replace(status, hardware={}, series={}, workers=few[0], events=few[1]), figures, cost)
    return page


def _page(status: Status, figures: Mapping[str, str] | None, cost: Mapping[str, Any] | None) -> str:
    clock = Clock.of(status)
    rates = {"steps a second": status.throughput, "samples a second": status.sample_throughput}
    series = {**status.series, **{name: each for name, each in rates.items() if each.steps}}
    curves = [curve for name, each in series.items() if (curve := step_chart(name, each, status))]
    workers = sorted(status.workers, key=lambda worker: worker.state.gone)
    return _template().render(
        status=status,
        verdict={Phase.SUCCEEDED: "good", Phase.FAILED: "bad"}.get(status.phase, ""),
        reason=shortened(status.reason, MAX_REASON),
        figures={**(figures or {}), **_figures(status), **(figures_of(cost) if cost else {})},
        chart=time_chart(status),
        curves=curves[: MOST_CURVES - 2] + curves[-2:] if len(curves) > MOST_CURVES else curves,
        left_out=max(0, len(curves) - MOST_CURVES),
        why=why(status),
        lost=_lost(status),
        unknown_time=_unknown_time(status),
        hardware=hardware_charts(status),
        cost=cost,
        rows=_rows(status, clock),
        workers=[_WorkerRow.of(worker) for worker in workers[:MOST_WORKERS]],
        more_workers=max(0, len(workers) - MOST_WORKERS),
    )


@dataclass(frozen=True, slots=True)
class _WorkerRow:
    """Of the table of workers."""

    name: str
    state: str
    ranks: str
    seconds: float
    machine: str
    node: str
    cpu: str
    memory: str
    gpus: str

    @classmethod
    def of(cls, worker: WorkerStatus) -> Self:
        """As it was last."""
        cpu, memory = worker.cpu_percent, worker.memory_bytes
        return cls(
            name=worker.name,
            state=worker.state,
            ranks=", ".join(map(str, worker.ranks[:_MOST_RANKS])),
            seconds=worker.seconds,
            machine=" ".join(filter(None, (worker.instance_type, worker.capacity_type))),
            node=worker.node,
            cpu="" if cpu is None else f"{cpu:.0f} %",
            memory="" if memory is None else size_text(float(memory)),
            gpus=", ".join(_gpu(each) for each in worker.gpus[:_MOST_GPUS]),
        )


def _gpu(gpu: GpuFigures) -> str:
    percent = "" if gpu.percent is None else f" {gpu.percent:.0f} %"
    used = "" if gpu.memory_bytes is None else f" {size_text(float(gpu.memory_bytes))}"
    whole = "" if gpu.memory_total_bytes is None else f" of {size_text(float(gpu.memory_total_bytes))}"
    return f"{shortened(gpu.name, _NAME)}{percent}{used}{whole}"


@dataclass(frozen=True, slots=True)
class _Lost:
    """Time in which the run did not train."""

    cause: str
    seconds: float
    percent: float
    """Of the run's time."""


def _lost(status: Status) -> list[_Lost]:
    clock = Clock.of(status)
    known = [(cause, seconds) for cause, seconds in list(status.lost_seconds.items())[:_MOST_CAUSES] if seconds > 0]
    return [
        _Lost(cause.replace("_", " "), seconds, min(100.0, 100 * seconds / (clock.end - clock.start)))
        for cause, seconds in sorted(known, key=lambda each: -each[1])
    ]


def _unknown_time(status: Status) -> str:
    """What of the time lost is not known, for people."""
    unknown = ""
    if status.tells_no_step:
        unknown = f" The script tells no step: the time to each world's first step is {UNKNOWN}."
    if status.lost_seconds and LostTime.CHECKPOINT not in status.lost_seconds:
        unknown += f" No durable checkpoint was reported: the time for the script's own checkpoints is {UNKNOWN}."
    return unknown


@dataclass(frozen=True, slots=True)
class _Row:
    """Of the table of events."""

    number: int | None
    """As in the chart; None: a checkpoint."""
    after: str
    """Time since the begin."""
    step: int | None
    category: str
    kind: str
    message: str


def _rows(status: Status, clock: Clock) -> list[_Row]:
    rows, number = [], 0
    for event in status.events[-MAX_EVENTS:]:
        routine = event.kind is EventKind.CHECKPOINT
        number += not routine
        after = _duration(event.time.timestamp() - clock.start)
        message = shortened(event.message, MAX_MESSAGE)
        kind, category = event.kind.replace("_", " "), "" if routine else category_of(event)
        rows.append(_Row(None if routine else number, after, event.step, category, kind, message))
    return rows


def _figures(status: Status) -> dict[str, str]:
    sizes = world_sizes(status)
    shown = [*(["…"] if len(sizes) > MOST_SIZES else []), *map(str, sizes[-MOST_SIZES:])]
    figures = {"world sizes": " → ".join(shown) or "–"}
    if not status.phase.final:
        figures["workers asked for"] = str(status.target_size)
    figures["newest step"] = step_text(status.step, trained=status.started is not None, none="–")
    figures |= {f"newest {shortened(name, _NAME)}": f"{value:.4g}" for name, value in list(status.metrics.items())[:4]}
    figures["worker time"] = _duration(sum(status.worker_seconds.values()))
    if status.usage:
        figures["of it idle"] = _duration(sum(each.idle_seconds for each in status.usage))
    figures["ranks failed / worlds lost"] = f"{status.rank_failures} / {status.forced_resets}"
    if status.checkpoint is not None:
        figures["newest checkpoint"] = f"step {status.checkpoint.step:,}"
    return figures


def _duration(seconds: float) -> str:
    """``12.3 s``, ``1:02:03``."""
    if abs(seconds) < 600:
        return f"{seconds:.1f} s"
    return str(timedelta(seconds=round(seconds))) if abs(seconds) < 1e12 else "∞"


def _printable(value: Any) -> Any:
    return _UNPRINTABLE.sub("�", value) if isinstance(value, str) and not isinstance(value, Markup) else value


@cache
def _template() -> Template:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, finalize=_printable, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"duration": _duration, "time": "{:%Y-%m-%d %H:%M:%S} UTC".format}
    environment.filters["short"] = lambda text: shortened(str(text), _NAME)
    return environment.from_string(files(__name__).joinpath("report.html.jinja").read_text(encoding="utf-8"))


# Why a run has failed, for the top of its report: the first rank that did, and what it wrote last. Pure.


@dataclass(frozen=True, slots=True)
class Why:
    """Of a failure."""

    who: str
    """``Rank 1 on worker-0``; empty: not known."""
    message: str
    """What was raised, or the reason of the run's end."""
    details: str
    """Step, exit code, time."""
    traceback: str
    """Its last characters, if it is too long: what was raised stands at the end."""


def why(status: Status) -> Why | None:
    """None: the run has not failed, or nothing is known beyond its reason."""
    if status.phase is not Phase.FAILED:
        return None
    if first := status.first_failure:
        step = "" if first.step is None else f"at step {first.step:,}, "
        details = f"{step}ended with {describe(first.exit_code)}, {first.time:%Y-%m-%d %H:%M:%S} UTC"
        cut = first.traceback if len(first.traceback) <= MAX_TRACEBACK else f"…{first.traceback[1 - MAX_TRACEBACK :]}"
        return Why(_capital(shortened(first.who, 200)), shortened(first.message, MAX_REASON), details, cut)
    failed = next((event for event in status.events if event.kind is EventKind.RANK_FAILED), None)
    if failed is None:
        return None
    who = shortened(f"{failed.message}{f' on {failed.worker}' if failed.worker else ''}", 400)
    step = "" if failed.step is None else f"after step {failed.step:,}, "
    return Why("", _capital(who), f"{step}{failed.time:%Y-%m-%d %H:%M:%S} UTC", "")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
