"""Figures of workers over time, in few points however long the run.

Time is divided into stretches, and the first point in each is kept; when a worker has too many, its stretches double.
So its points cover its whole life evenly, as :mod:`elastic_runtime.launcher.record.series` has it with steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from itertools import pairwise
from typing import Any

from elastic_runtime.launcher.record.series import chosen
from elastic_runtime.protocol.wire import Heartbeat
from elastic_runtime.run.status import MAX_GPUS, Status, WorkerStatus
from elastic_runtime.run.status_figures import Hardware, HardwareColumn

MAX_WORKERS = 64
"""Workers with a curve; of more, those that came first, and none that is gone."""
MAX_WORKER_POINTS = 120
MAX_ALL_POINTS = 1200
"""Points of all workers together, each of up to seven numbers: about 80 kB of JSON, in a ConfigMap that takes 1 MiB.
So 16 workers have 75 each."""
FEWEST = 2

_COLUMNS = tuple(HardwareColumn)
_Point = tuple[float | None, ...]


@dataclass(slots=True)
class _Curve:
    stride: int = 1
    """Seconds."""
    times: list[int] = field(default_factory=list)
    points: list[_Point] = field(default_factory=list)
    shown: Hardware | None = None

    def add(self, time: int, point: _Point) -> None:
        if self.times and (time - self.times[0]) // self.stride <= (self.times[-1] - self.times[0]) // self.stride:
            return
        self.times.append(time)
        self.points.append(point)
        self.shown = None

    def thin(self, limit: int) -> None:
        if len(self.times) > limit:
            self.stride, kept = chosen(self.times, self.stride, limit)
            self.times = [self.times[at] for at in kept]
            self.points = [self.points[at] for at in kept]
            self.shown = None

    def document(self) -> Hardware:
        if self.shown is None:
            columns = zip(_COLUMNS, zip(*self.points, strict=True), strict=False)
            known = {str(name): column for name, column in columns if any(value is not None for value in column)}
            self.shown = Hardware(tuple(map(float, self.times)), known)
        return self.shown

    @classmethod
    def of(cls, told: Hardware) -> _Curve:
        """As a launcher before has told it; nothing if its columns do not fit each other."""
        count = len(told.times)
        columns = [told.columns.get(name, (None,) * count) for name in _COLUMNS]
        if not count or any(len(column) != count for column in columns):
            return cls()
        times = [int(time) for time in told.times]
        stride = max(1, min((after - before for before, after in pairwise(times)), default=1))
        return cls(stride, times, list(zip(*columns, strict=True)))


class HardwareRecord:
    """The curves by worker.

    Args:
        previous: the status of the launcher before, whose curves are kept. Its workers come back under other names.
    """

    def __init__(self, previous: Status | None) -> None:
        self._curves = {name: _Curve.of(told) for name, told in previous.hardware.items()} if previous else {}

    def heard(self, worker: str, beat: Heartbeat, now: datetime) -> None:
        """A heartbeat of that worker, which is here."""
        curve = self._curves.get(worker)
        if curve is None:
            curve = self._curves[worker] = _Curve()
        curve.add(int(now.timestamp()), _point(beat))
        curve.thin(MAX_WORKER_POINTS)

    def told(self, present: Iterable[str]) -> Mapping[str, Hardware]:
        """For the status: of these workers, which are here, and as far as there is room of those that went last."""
        here = [name for name in present if name in self._curves]
        gone = [name for name in self._curves if name not in set(here)]
        room = max(0, MAX_WORKERS - len(here))
        for name in gone[: max(0, len(gone) - room)]:
            del self._curves[name]
        named = [*gone[-room:], *here] if room else here[:MAX_WORKERS]
        limit = max(FEWEST, min(MAX_WORKER_POINTS, MAX_ALL_POINTS // max(1, len(named))))
        for name in named:
            self._curves[name].thin(limit)
        return {name: self._curves[name].document() for name in named}


def figures_of(beat: Heartbeat | None) -> dict[str, Any]:
    """Return figures as fields of a :class:`~elastic_runtime.run.status.WorkerStatus`."""
    return {} if beat is None else {each.name: getattr(beat, each.name) for each in fields(Heartbeat)}


def without_figures_of(worker: WorkerStatus) -> WorkerStatus:
    """Return a silent worker's status without figures, except for its memory, which is the last that is known."""
    none: dict[str, Any] = {"cpu_percent": None, "receive_bytes_per_second": None, "transmit_bytes_per_second": None}
    return replace(worker, gpus=(), **none)


def with_few_gpus(workers: Iterable[WorkerStatus]) -> Iterator[WorkerStatus]:
    """Those of the first workers, up to :data:`~elastic_runtime.run.status.MAX_GPUS` together."""
    room = MAX_GPUS
    for worker in workers:
        room -= len(worker.gpus)
        yield worker if room >= 0 or not worker.gpus else replace(worker, gpus=())


def _point(beat: Heartbeat) -> _Point:
    percents = [gpu.percent for gpu in beat.gpus if gpu.percent is not None]
    memories = [gpu.memory_bytes for gpu in beat.gpus if gpu.memory_bytes is not None]
    gpu = sum(percents) / len(percents) if percents else None
    figures = (
        beat.cpu_percent,
        beat.memory_bytes,
        beat.receive_bytes_per_second,
        beat.transmit_bytes_per_second,
        gpu,
        sum(memories) if memories else None,
    )
    return tuple(None if value is None else float(f"{value:.4g}") for value in figures)
