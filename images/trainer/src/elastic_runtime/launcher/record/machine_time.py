"""How long workers were there, and how long of that idle, by the kind of machine that they run on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from elastic_runtime.launcher.worker_pool import Worker
from elastic_runtime.printable import printable
from elastic_runtime.run.status import MAX_MACHINE_NAME, MAX_USAGE, Status, Usage

_Kind = tuple[str | None, str | None]
"""Capacity type, instance type."""
_UNKNOWN: _Kind = (None, None)


@dataclass(frozen=True, slots=True)
class _Look:
    """One observation of a worker."""

    at: datetime
    idle: bool
    """From then on, until the next look."""
    idle_seconds: float = 0.0
    """Up to then."""


class MachineTime:
    """Counts from look to look: what a worker did at one look, it has done until the next.

    Args:
        previous: the status of the launcher before, whose seconds are continued.
    """

    def __init__(self, previous: Status | None) -> None:
        self._past: dict[_Kind, Usage] = {}
        self._looks: dict[str, _Look] = {}
        for each in previous.usage if previous else ():
            _add(self._past, (each.capacity_type, each.instance_type), each.seconds, each.idle_seconds)

    def look(self, worker: Worker, now: datetime, *, idle: bool) -> None:
        """``idle``: the worker has no rank in a world that trains."""
        self._looks[worker.name] = _Look(now, idle, self._idle_seconds(worker, now))

    def gone(self, worker: Worker, now: datetime) -> None:
        """End the time of a worker that is gone."""
        _add(self._past, _kind(worker), _seconds(worker.since, now), self._idle_seconds(worker, now))
        self._looks.pop(worker.name, None)

    def usage(self, workers: Iterable[Worker], now: datetime) -> tuple[Usage, ...]:
        """Return the usage of past workers and of these present ones: at most :data:`MAX_USAGE` kinds of machines."""
        used = dict(self._past)
        for worker in workers:
            _add(used, _kind(worker), _seconds(worker.since, now), self._idle_seconds(worker, now))
        return tuple(used.values())

    def _idle_seconds(self, worker: Worker, now: datetime) -> float:
        last = self._looks.get(worker.name, _Look(worker.since, idle=True))  # Nobody trains before the first look.
        more = _seconds(last.at, now) if last.idle else 0.0
        return min(last.idle_seconds + more, _seconds(worker.since, now))


def _add(used: dict[_Kind, Usage], kind: _Kind, seconds: float, idle: float) -> None:
    if kind not in used and len(used) >= MAX_USAGE - 1:
        kind = _UNKNOWN
    before = used.get(kind, Usage(*kind))
    used[kind] = Usage(*kind, before.seconds + seconds, before.idle_seconds + idle)


def _kind(worker: Worker) -> _Kind:
    machine = worker.machine
    return (_name(machine.capacity_type), _name(machine.instance_type)) if machine else _UNKNOWN


def _name(label: str | None) -> str | None:
    return None if label is None else printable(label, MAX_MACHINE_NAME)


def _seconds(begin: datetime, end: datetime) -> float:
    """Not negative when the clock was set back."""
    return max(0.0, (end - begin).total_seconds())
