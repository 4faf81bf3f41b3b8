"""Where the lines of a run's charts go, in pixels, with nothing but its status; the markup is in the template. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from elastic_runtime.launcher.record.series import MAX_POINTS
from elastic_runtime.run.status import MAX_EVENTS, MAX_HISTORY, Event, EventKind, Series, Status, shortened

_NEIGHBOURS = 5
"""Points on each side that the bold line averages over; fewer at its ends."""
_LABEL_DISTANCE = 40.0
"""Pixels between two labels of events, at least; what happened in between shares the first."""
_LOG_FROM = 20.0
"""Ratio of largest to smallest, from which on positive values are drawn on a logarithmic scale."""
_EXTREMES = 1e-100, 1e100
"""Values below count as 0, and values above are left out."""
_UNITS = ((86400.0, "d", 3 * 86400.0), (3600.0, "h", 3 * 3600.0), (60.0, "min", 300.0), (1.0, "s", 0.0))
"""Seconds in it, its name, and from which span on it is used."""
_CATEGORIES = {
    EventKind.SIZE_ASKED: "size",
    EventKind.STARTED: "size",
    EventKind.SCALED: "size",
    EventKind.NOTICE: "notice",
    EventKind.HANDOVER: "notice",
    EventKind.LEFT: "notice",
    EventKind.LOST: "loss",
    EventKind.RANK_FAILED: "loss",
    EventKind.RESTARTED: "loss",
    EventKind.CHECKPOINT_SKIPPED: "loss",
    EventKind.WARNING: "loss",
    EventKind.WARNING: "loss",
}
"""Of events, by colour; all others are pauses and ends."""


@dataclass(frozen=True, slots=True)
class Area:
    """A rectangle of the drawing."""

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

    def x(self, share: float) -> float:
        """So far along its width, from 0 at the left to 1."""
        return self.left + share * self.width

    def y(self, share: float) -> float:
        """So far up its height, from 0 at the bottom to 1."""
        return self.bottom - share * self.height


@dataclass(frozen=True, slots=True)
class Tick:
    """A labelled position on an axis."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Curve:
    """A value, in an area of its own."""

    name: str
    area: Area
    path: str
    smooth: str
    """Of the moving average."""
    end: tuple[float, float]
    newest: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    worlds: tuple[float, ...] = ()
    """Where another world began."""


@dataclass(frozen=True, slots=True)
class Mark:
    """An event, where it happened."""

    at: float
    category: str
    title: str


@dataclass(frozen=True, slots=True)
class TimeChart:
    """A metric above, world size below, one axis of time."""

    metric: Curve | None
    world: Area
    unit: str
    """Of the time axis."""
    world_line: str
    world_fill: str
    asked_line: str
    time_ticks: tuple[Tick, ...]
    world_ticks: tuple[Tick, ...]
    marks: tuple[Mark, ...]
    labels: tuple[Tick, ...]
    checkpoints: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Scale:
    """From values to a share of the axis, 0 to 1."""

    low: float
    high: float
    logarithmic: bool = False

    @classmethod
    def of(cls, values: Sequence[float], *, linear: bool = False) -> Scale:
        """One that shows them all; at least one."""
        low, high = min(values), max(values)
        if low > 0 and high / low >= _LOG_FROM and not linear:
            return cls(low, high, logarithmic=True)
        if high - low <= 1e-9 * max(abs(low), abs(high)):
            pad = 0.1 * abs(high) or 1.0
            return cls(low - pad, high + pad)
        return cls(low, high)

    def share(self, value: float) -> float:
        """Where the value stands; what lies outside stands at the edge."""
        low, high, value = self.low, self.high, min(max(value, self.low), self.high)
        if self.logarithmic:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        return (value - low) / (high - low)

    def ticks(self, wanted: int) -> list[float]:
        """Round values on it, about so many."""
        return log_ticks(self.low, self.high, wanted) if self.logarithmic else nice_ticks(self.low, self.high, wanted)


@dataclass(frozen=True, slots=True)
class Clock:
    """The time that is drawn, in seconds since 1970."""

    start: float
    end: float

    @classmethod
    def of(cls, status: Status) -> Clock:
        """From the first that is known of the run to its end, or to now."""
        told = [thing.time for things in (status.asked, status.history, status.events) for thing in things]
        known = [status.updated, *told, *(time for time in (status.started, status.finished) if time)]
        end = status.finished or max(status.updated, *told, status.updated)
        start = min(known).timestamp()
        return cls(start, max(end.timestamp(), start + 1.0))

    def scale(self) -> Scale:
        """Of seconds since 1970."""
        return Scale(self.start, self.end)

    def unit(self) -> tuple[float, str]:
        """Seconds in the unit of the axis, and its name."""
        return next((seconds, name) for seconds, name, least in _UNITS if self.end - self.start >= least)

    def ticks(self, area: Area, wanted: int) -> tuple[Tick, ...]:
        """About so many along the area's width, in the unit of the axis."""
        (seconds, _), scale = self.unit(), self.scale()
        return tuple(
            Tick(round(area.x(scale.share(self.start + tick * seconds)), 1), f"{tick:g}")
            for tick in nice_ticks(0.0, (self.end - self.start) / seconds, wanted)
        )


def time_chart(status: Status) -> TimeChart:
    """The run over time, with its most telling metric: ``loss``, or else the first."""
    clock = Clock.of(status)
    name = "loss" if "loss" in status.series else next(iter(status.series), None)
    upper = Area(56, 44, 884, 210)
    points = [] if name is None else points_of(status.series[name], over_time=True)
    world = Area(56, 288 if points else 58, 884, 110)
    scale = clock.scale()

    def x(time: float) -> float:
        return round(world.x(scale.share(time)), 1)

    history, slots = status.history[-MAX_HISTORY:], max((worker.slots for worker in status.workers), default=1)
    sizes = [(each.time.timestamp(), max(0, each.size)) for each in history]
    asked = [(each.time.timestamp(), max(0, each.workers * slots)) for each in status.asked[-MAX_HISTORY:]]
    most = float(min(max([1, *(size for _, size in (*sizes, *asked))]), 10**9))
    sizes_scale = Scale(0.0, most * 1.15)

    def y(size: float) -> float:
        return round(world.y(sizes_scale.share(size)), 1)

    line = _stairs([(clock.start, 0), *sizes, (clock.end, sizes[-1][1] if sizes else 0)], x, y)
    events = status.events[-MAX_EVENTS:]
    marked = [event for event in events if event.kind is not EventKind.CHECKPOINT]
    time_ticks = clock.ticks(world, 8)
    at = [x(event.time.timestamp()) for event in marked]
    return TimeChart(
        metric=_curve(name, points, upper, scale, time_ticks) if name is not None and points else None,
        world=world,
        unit=clock.unit()[1],
        world_line=line,
        world_fill=f"{line} V{world.bottom} H{world.left} Z",
        asked_line=_stairs([*asked, (clock.end, asked[-1][1])], x, y) if asked else "",
        time_ticks=time_ticks,
        world_ticks=tuple(Tick(y(size), f"{size:g}") for size in nice_ticks(0.0, most, 4) if size == int(size)),
        marks=tuple(
            Mark(where, category_of(event), f"{event.kind.replace('_', ' ')}: {shortened(event.message, 100)}")
            for where, event in zip(at, marked, strict=True)
        ),
        labels=_labels(at),
        checkpoints=tuple(x(event.time.timestamp()) for event in events if event.kind is EventKind.CHECKPOINT),
    )


def category_of(event: Event) -> str:
    """``size``, ``notice``, ``loss`` or ``pause``: the colour in which it is drawn."""
    return _CATEGORIES.get(event.kind, "pause")


def step_chart(name: str, series: Series, status: Status) -> Curve | None:
    """One metric over the global steps; None when there is nothing to draw."""
    points = points_of(series)
    if not points:
        return None
    area = Area(52, 34, 396, 150)
    scale = Scale.of([step for step, _ in points], linear=True)
    begun = [world.step for world in status.history[-MAX_HISTORY:] if world.step is not None]
    inside = [step for step in begun if scale.low < step < scale.high]
    ticks = [tick for tick in nice_ticks(scale.low, scale.high, 5) if tick == int(tick)]
    return _curve(
        name,
        points,
        area,
        scale,
        tuple(Tick(round(area.x(scale.share(tick)), 1), short(tick)) for tick in ticks),
        tuple(round(area.x(scale.share(step)), 1) for step in inside),
    )


def points_of(series: Series, *, over_time: bool = False) -> list[tuple[float, float]]:
    """What of a series can be drawn."""
    least, most = _EXTREMES
    axis: Sequence[float] = series.times if over_time else series.steps
    pairs = list(zip(axis, series.values, strict=False))[-MAX_POINTS:]
    drawable = [(float(at), value) for at, value in pairs if abs(at) < 2**53 and abs(value) < most]
    return [(at, value if abs(value) >= least else 0.0) for at, value in drawable]


def nice_ticks(low: float, high: float, wanted: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, about ``wanted`` of them."""
    raw = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def log_ticks(low: float, high: float, wanted: int) -> list[float]:
    """Powers of ten, so few of them as wanted; with 2 and 5 times these where that leaves too few."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = max(1, math.ceil(len(powers) / wanted))
    factors = (1, 2, 5) if len(powers) * 2 <= wanted else (1,)
    candidates = (float(f"{factor}e{power}") for power in powers if power % every == 0 for factor in factors)
    return [tick for tick in candidates if low <= tick <= high]


def short(value: float) -> str:
    """``12000`` as ``12k``."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{suffix}"
    return f"{value:g}"


def _curve(
    name: str,
    points: Sequence[tuple[float, float]],
    area: Area,
    horizontal: Scale,
    x_ticks: tuple[Tick, ...],
    worlds: tuple[float, ...] = (),
) -> Curve:
    vertical = Scale.of([value for _, value in points])
    places = [(area.x(horizontal.share(at)), area.y(vertical.share(value))) for at, value in points]
    return Curve(
        name=name,
        area=area,
        path=path_of(places),
        smooth=path_of(_smooth(places)),
        end=(round(places[-1][0], 1), round(places[-1][1], 1)),
        newest=f"{points[-1][1]:.4g}",
        x_ticks=x_ticks,
        y_ticks=tuple(Tick(round(area.y(vertical.share(tick)), 1), short(tick)) for tick in vertical.ticks(6)),
        worlds=worlds,
    )


def _stairs(points: Sequence[tuple[float, int]], x: Callable[[float], float], y: Callable[[float], float]) -> str:
    corners = [(x(points[0][0]), y(points[0][1]))]
    for (_, before), (time, after) in pairwise(points):
        corners += [(x(time), y(before)), (x(time), y(after))]
    return path_of(corners)


def _smooth(places: Sequence[tuple[float, float]]) -> Iterable[tuple[float, float]]:
    """A centred moving average, which does not lag; on a logarithmic scale, that of the logarithms."""
    for at, (x, _) in enumerate(places):
        reach = min(_NEIGHBOURS, at, len(places) - 1 - at)
        window = places[at - reach : at + reach + 1]
        yield x, sum(y for _, y in window) / len(window)


def _labels(at: Sequence[float]) -> tuple[Tick, ...]:
    """Numbers of the events at these places, from 1; those that are close together share one."""
    groups: list[tuple[float, int, int]] = []
    for number, place in enumerate(at, start=1):
        if groups and place < groups[-1][0] + _LABEL_DISTANCE:
            groups[-1] = (groups[-1][0], groups[-1][1], number)
        else:
            groups.append((place, number, number))
    return tuple(Tick(place, f"{first}" if first == last else f"{first}–{last}") for place, first, last in groups)


def path_of(points: Iterable[tuple[float, float]]) -> str:
    """A line through them, in SVG's words."""
    return "M" + " L".join(f"{x:.1f},{y:.1f}" for x, y in points)
