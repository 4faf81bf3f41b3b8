"""The geometry of the report's two charts; the markup is in ``report.html.jinja``. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

from demo_kit.look_back import Phase
from digits.ledger import StepLoss

_ROUTINE = "checkpoint"
"""Kind of event that is drawn as a tick at the axis, not as a numbered line."""
_SMOOTHING = 0.06
"""Weight of the newest loss in the moving average that is drawn bold."""
_MARK_DISTANCE = 20.0
"""Pixels between the numbers of two events, at least."""


@dataclass(frozen=True, slots=True)
class Area:
    """A rectangle of the drawing, in pixels."""

    left: float
    top: float
    width: float
    height: float

    @property
    def right(self) -> float:
        """Of its right edge."""
        return self.left + self.width

    @property
    def bottom(self) -> float:
        """Of its lower edge."""
        return self.top + self.height


@dataclass(frozen=True, slots=True)
class Tick:
    """A labelled position on an axis."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A numbered event."""

    at: float
    """Pixels, where it happened."""
    label_at: float
    """Pixels, where its number stands: moved so that numbers do not cover each other."""
    number: int
    kind: str
    seconds: float
    """Since the first step."""
    step: int | None
    message: str


@dataclass(frozen=True, slots=True)
class TrainingChart:
    """Loss above, world size below, one axis of time."""

    loss_area: Area
    world_area: Area
    loss_path: str
    smooth_path: str
    world_line: str
    world_fill: str
    time_ticks: tuple[Tick, ...]
    loss_ticks: tuple[Tick, ...]
    world_ticks: tuple[Tick, ...]
    marks: tuple[Mark, ...]
    checkpoints: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Bar:
    """One phase."""

    left: float
    top: float
    width: float
    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class PhasesChart:
    """One row per phase."""

    area: Area
    bars: tuple[Bar, ...]
    time_ticks: tuple[Tick, ...]


def training_chart(losses: Sequence[StepLoss], events: Iterable[Mapping[str, Any]]) -> TrainingChart:
    """Chart of one run.

    Args:
        losses: of every global step; at least one.
        events: of the result document.
    """
    loss_area, world_area = Area(56, 44, 884, 240), Area(56, 312, 884, 96)
    start, end = losses[0].time, max(losses[-1].time, losses[0].time + 1.0)

    def x(moment: float) -> float:
        share = (moment - start) / (end - start)
        return round(loss_area.left + min(1.0, max(0.0, share)) * loss_area.width, 1)

    positive = [step.loss for step in losses if step.loss > 0 and math.isfinite(step.loss)] or [1.0]
    low, high = math.log10(min(positive) / 1.2), math.log10(max(positive) * 1.2)

    def y(loss: float) -> float:
        share = (math.log10(max(loss, 10**low)) - low) / (high - low)
        return round(loss_area.bottom - share * loss_area.height, 1)

    most = max(step.world_size for step in losses)

    def size_y(size: float) -> float:
        return round(world_area.bottom - size / (most + 0.5) * world_area.height, 1)

    finite = [step for step in losses if math.isfinite(step.loss)]
    stairs = _stairs(losses, x, size_y)
    occurred = [(datetime.fromisoformat(event["time"]).timestamp(), event) for event in events]
    return TrainingChart(
        loss_area=loss_area,
        world_area=world_area,
        loss_path=_path((x(step.time), y(step.loss)) for step in finite),
        smooth_path=_path((x(step.time), y(loss)) for step, loss in zip(finite, _smooth(finite), strict=True)),
        world_line=_path(stairs),
        world_fill=f"{_path(stairs)} V{world_area.bottom} H{world_area.left} Z",
        time_ticks=tuple(Tick(x(start + second), f"{second:g}") for second in nice_ticks(end - start, 8)),
        loss_ticks=tuple(Tick(y(loss), f"{loss:g}") for loss in log_ticks(low, high)),
        world_ticks=tuple(Tick(size_y(size), str(size)) for size in range(most + 1)),
        marks=_marks([(x(at), at - start, event) for at, event in occurred if event["kind"] != _ROUTINE], loss_area),
        checkpoints=tuple(x(at) for at, event in occurred if event["kind"] == _ROUTINE),
    )


def phases_chart(phases: Sequence[Phase]) -> PhasesChart:
    """Bars of when each phase ran; at least one."""
    row = 30.0
    area = Area(120, 8, 820, row * len(phases))
    start = min(phase.start for phase in phases)
    span = max(phase.start + phase.seconds for phase in phases) - start or 1.0
    bars = tuple(
        Bar(
            left=round(area.left + (phase.start - start) / span * area.width, 1),
            top=area.top + number * row + 5,
            width=round(max(2.0, phase.seconds / span * area.width), 1),
            name=phase.name,
            seconds=phase.seconds,
        )
        for number, phase in enumerate(phases)
    )
    ticks = tuple(Tick(round(area.left + at / span * area.width, 1), f"{at:g}") for at in nice_ticks(span, 8))
    return PhasesChart(area, bars, ticks)


def nice_ticks(span: float, wanted: int) -> list[float]:
    """From 0 to ``span`` in steps of 1, 2 or 5 times a power of ten, about ``wanted`` of them."""
    raw = span / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw)
    return [round(number * step, 6) for number in range(int(span / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten between ``10**low`` and ``10**high``."""
    candidates = (factor * 10.0**power for power in range(math.floor(low), math.ceil(high) + 1) for factor in (1, 2, 5))
    return [tick for tick in candidates if low <= math.log10(tick) <= high]


def _smooth(steps: Sequence[StepLoss]) -> list[float]:
    """Exponential moving average of the logarithm, started on the first loss."""
    smoothed: list[float] = []
    mean = 0.0
    for number, step in enumerate(steps):
        value = math.log(max(step.loss, 1e-12))
        mean = value if number == 0 else mean + _SMOOTHING * (value - mean)
        smoothed.append(math.exp(mean))
    return smoothed


def _stairs(losses: Sequence[StepLoss], x: Any, size_y: Any) -> list[tuple[float, float]]:
    points = [(x(losses[0].time), size_y(losses[0].world_size))]
    for before, after in pairwise(losses):
        if after.world_size != before.world_size:
            points += [(x(after.time), size_y(before.world_size)), (x(after.time), size_y(after.world_size))]
    return [*points, (x(losses[-1].time), size_y(losses[-1].world_size))]


def _marks(events: Sequence[tuple[float, float, Mapping[str, Any]]], area: Area) -> tuple[Mark, ...]:
    positions = _spread([at for at, _, _ in events], area)
    return tuple(
        Mark(at, label_at, number, event["kind"], seconds, event.get("step"), event["message"])
        for number, (label_at, (at, seconds, event)) in enumerate(zip(positions, events, strict=True), start=1)
    )


def _spread(positions: Sequence[float], area: Area) -> list[float]:
    """Ascending positions, moved apart: to the right first, then back from the right edge."""
    moved: list[float] = []
    for at in positions:
        moved.append(max(at, moved[-1] + _MARK_DISTANCE) if moved else at)
    limit = area.right
    for index in range(len(moved) - 1, -1, -1):
        moved[index] = min(moved[index], limit)
        limit = moved[index] - _MARK_DISTANCE
    return moved


def _path(points: Iterable[tuple[float, float]]) -> str:
    return "M" + " L".join(f"{x},{y}" for x, y in points)
