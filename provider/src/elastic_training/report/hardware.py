"""Charts of workers' figures over time: one for each figure, a line for each worker. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from elastic_runtime.run.status import Status, WorkerState
from elastic_runtime.run.status_figures import Hardware, HardwareColumn
from elastic_training.report.chart import Area, Clock, Scale, Tick, nice_ticks, path_of

MOST_LINES = 8
"""Workers that are drawn: as many as there are colours."""
_MOST_POINTS = 150
"""Of one line."""
_LARGEST = 1e18
"""Values above are none of a machine's, and are left out."""
_TITLES = {
    HardwareColumn.CPU_PERCENT: "CPU, per cent of one core",
    HardwareColumn.MEMORY_BYTES: "memory",
    HardwareColumn.GPU_PERCENT: "GPU, per cent",
    HardwareColumn.GPU_MEMORY_BYTES: "GPU memory",
    HardwareColumn.RECEIVE: "received a second",
    HardwareColumn.TRANSMIT: "sent a second",
}
"""In the order in which they are shown."""
_SIZES = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"))


@dataclass(frozen=True, slots=True)
class Line:
    """Of one worker."""

    worker: str
    colour: int
    """From 0; the same in all charts."""
    path: str


@dataclass(frozen=True, slots=True)
class HardwareChart:
    """Of one figure."""

    title: str
    area: Area
    lines: tuple[Line, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]


@dataclass(frozen=True, slots=True)
class HardwareCharts:
    """All of them."""

    charts: tuple[HardwareChart, ...]
    workers: tuple[tuple[str, int], ...]
    """Those that are drawn, with their colours."""
    left_out: int
    """Workers with figures that are not drawn."""
    unit: str
    """Of the axis of time."""


def hardware_charts(status: Status) -> HardwareCharts:
    """What can be drawn of a status: the workers that are present first, then those that left last."""
    clock = Clock.of(status)
    state = {worker.name: worker.state for worker in status.workers}
    told = {name: each for name, each in status.hardware.items() if any(_drawable(each, column) for column in _TITLES)}
    names = sorted(told, key=lambda name: (state.get(name, WorkerState.LOST).gone, -max(told[name].times, default=0)))
    shown = {name: number for number, name in enumerate(sorted(names[:MOST_LINES]))}
    charts = (_chart(column, {name: told[name] for name in shown}, shown, clock) for column in _TITLES)
    unit = clock.unit()[1]
    return HardwareCharts(tuple(filter(None, charts)), tuple(shown.items()), len(names) - len(shown), unit)


def size_text(value: float) -> str:
    """``1.5 GiB``."""
    for size, name in _SIZES:
        if value >= size:
            return f"{value / size:.3g} {name}"
    return f"{value:.0f} B"


def _drawable(hardware: Hardware, column: str) -> list[list[tuple[float, float]]]:
    """Stretches of points without a gap."""
    stretches: list[list[tuple[float, float]]] = [[]]
    for time, value in zip(hardware.times, hardware.columns.get(column, ()), strict=False):
        if value is not None and 0 <= value < _LARGEST and 0 <= time < _LARGEST:
            stretches[-1].append((time, float(value)))
        elif stretches[-1]:
            stretches.append([])
    return [each for each in stretches if each]


def _chart(
    column: HardwareColumn, told: Mapping[str, Hardware], colours: Mapping[str, int], clock: Clock
) -> HardwareChart | None:
    drawn = {name: stretches for name, each in told.items() if (stretches := _drawable(each, column))}
    if not drawn:
        return None
    area, horizontal = Area(64, 34, 384, 120), clock.scale()
    most = max(value for stretches in drawn.values() for stretch in stretches for _, value in stretch)
    size, unit = _unit(column, most)
    vertical = Scale(0.0, max(most * 1.1, size * 1e-3, 1e-9))

    def place(point: tuple[float, float]) -> tuple[float, float]:
        time, value = point
        return area.x(horizontal.share(time)), area.y(vertical.share(value))

    title = _TITLES[column] + (f", {unit}" if unit else "")
    return HardwareChart(
        title=title,
        area=area,
        lines=tuple(
            Line(name, colours[name], _path([[place(point) for point in each] for each in _thinned(stretches)]))
            for name, stretches in drawn.items()
        ),
        x_ticks=clock.ticks(area, 5),
        y_ticks=tuple(
            Tick(round(area.y(vertical.share(tick * size)), 1), f"{tick:g}")
            for tick in nice_ticks(0.0, vertical.high / size, 4)
        ),
    )


def _unit(column: HardwareColumn, most: float) -> tuple[float, str]:
    if column in (HardwareColumn.CPU_PERCENT, HardwareColumn.GPU_PERCENT):
        return 1.0, ""
    return next(((size, name) for size, name in _SIZES if most >= size), (1.0, "B"))


def _thinned(stretches: Sequence[Sequence[tuple[float, float]]]) -> Iterable[Sequence[tuple[float, float]]]:
    """At most about :data:`_MOST_POINTS` of them."""
    every = max(1, -(-sum(map(len, stretches)) // _MOST_POINTS))
    return (stretch[::every] for stretch in stretches[-_MOST_POINTS:])


def _path(stretches: Iterable[Sequence[tuple[float, float]]]) -> str:
    """A point that stands alone is a dot."""
    return " ".join(path_of(places) + ("" if len(places) > 1 else " h0.1") for places in stretches)
