"""A run's report: one HTML page, drawn from its status alone, that needs nothing else, not even a network.

Drawn by hand as inline SVG: the plotting libraries that embed themselves add megabytes of script for a few lines.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from elastic_runtime.status import (
    MAX_EVENTS,
    MAX_MESSAGE,
    MAX_REASON,
    EventKind,
    Phase,
    Status,
    WorkerState,
    shortened,
)
from elastic_training.report.chart import Clock, category_of, step_chart, time_chart

MOST_CURVES = 12
"""Metrics that are drawn."""
MOST_WORKERS = 100
"""Workers that are listed."""
MOST_SIZES = 12
"""Sizes of worlds in a row."""
_GONE = (WorkerState.LEFT, WorkerState.LOST)
_NAME = 100
_UNPRINTABLE = re.compile(r"[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 does not allow, or discourages."""


def render_report(status: Status, figures: Mapping[str, str] | None = None) -> str:
    """The page as HTML that is well-formed XML, too; less than 1 MiB, whatever the status holds.

    Args:
        status: of a run in any phase.
        figures: of the caller's own: value by what it is. Shown first.
    """
    clock = Clock.of(status)
    series = {**status.series, "steps a second": status.throughput}
    curves = [curve for name, each in series.items() if (curve := step_chart(name, each, status))]
    workers = sorted(status.workers, key=lambda worker: worker.state in _GONE)
    return _template().render(
        status=status,
        verdict={Phase.SUCCEEDED: "good", Phase.FAILED: "bad"}.get(status.phase, ""),
        reason=shortened(status.reason, MAX_REASON),
        figures={**(figures or {}), **_figures(status)},
        chart=time_chart(status),
        curves=curves[: MOST_CURVES - 1] + curves[-1:] if len(curves) > MOST_CURVES else curves,
        left_out=max(0, len(curves) - MOST_CURVES),
        rows=_rows(status, clock),
        workers=workers[:MOST_WORKERS],
        more_workers=max(0, len(workers) - MOST_WORKERS),
    )


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
    sizes: list[int] = []
    for world in status.history:
        if world.size > 0 and sizes[-1:] != [world.size]:
            sizes.append(world.size)
    shown = ["…", *map(str, sizes[-MOST_SIZES:])] if len(sizes) > MOST_SIZES else [str(size) for size in sizes]
    figures = {"world sizes": " → ".join(shown) or "–"}
    if not status.phase.final:
        figures["workers asked for"] = str(status.target_size)
    figures["newest step"] = "–" if status.step is None else f"{status.step:,}"
    figures |= {f"newest {shortened(name, _NAME)}": f"{value:.4g}" for name, value in list(status.metrics.items())[:4]}
    figures["worker time"] = _duration(sum(status.worker_seconds.values()))
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
