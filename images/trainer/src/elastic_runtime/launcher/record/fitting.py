"""A status that fits where it is kept, whatever is in it."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from elastic_runtime.documents import to_json
from elastic_runtime.run.status import Status

ROOM = 1_000_000
"""Bytes. The values of a ConfigMap may have 1 MiB together."""
_FEW = 16
T = TypeVar("T")


def fitted(status: Status, room: int = ROOM) -> str:
    """The status as JSON of at most so many bytes.

    Each of its parts is bounded, and a status of a thousand workers fits. Where names and messages are as long as they
    may be, and of characters that JSON writes as twelve bytes, figures of hardware are left out, then the oldest events
    and worlds, then the other curves, then the workers that are listed first, until it does.
    """
    while len(text := to_json(status)) > room:
        smaller = _smaller(status)
        if smaller == status:
            break
        status = smaller
    return text


def _smaller(status: Status) -> Status:
    if status.hardware:
        return replace(status, hardware={})
    if any(worker.gpus for worker in status.workers):
        return replace(status, workers=tuple(replace(worker, gpus=()) for worker in status.workers))
    if len(status.events) + len(status.history) > _FEW:
        return replace(status, events=_newer(status.events), history=_newer(status.history))
    if status.series or status.metrics:
        return replace(status, series={}, metrics={})
    return replace(status, workers=_newer(status.workers), worker_seconds={})


def _newer(items: tuple[T, ...]) -> tuple[T, ...]:
    return items[(len(items) + 1) // 2 :]
