"""Headline of a status: what readers and tasks wait for, without figures that only grow.

The launcher writes the :class:`Headline` together with each status: on Kubernetes as an annotation, so that a list of
runs, or a watch, need not fetch the statuses; on this machine as a file beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from hashlib import blake2s
from typing import Any

from elastic_runtime.documents import to_json
from elastic_runtime.errors import FailureKind
from elastic_runtime.run.deadline import DeadlineStatus
from elastic_runtime.run.status import MAX_MESSAGE, Phase, Series, Status, Usage, shortened
from elastic_runtime.run.status_progress import Progress

_NEVER = datetime(1, 1, 1, tzinfo=UTC)
_NO_FIGURES: dict[str, Any] = {
    "cpu_percent": None,
    "memory_bytes": None,
    "receive_bytes_per_second": None,
    "transmit_bytes_per_second": None,
    "gpus": (),
}


@dataclass(frozen=True, slots=True)
class Headline:
    """A run at a glance: less than 17 KiB of JSON, as a rule less than one.

    Fields without a docstring are those of the status.
    """

    run: str
    uid: str
    phase: Phase
    reason: str
    """The first :data:`MAX_MESSAGE` characters."""
    updated: datetime
    news: str
    """Another text whenever the status says something new, mere figures apart; see :func:`without_figures`."""
    started: datetime | None = None
    finished: datetime | None = None
    failure: FailureKind | None = None
    world_size: int = 0
    target_size: int = 0
    generation: int = 0
    step: int | None = None
    progress: Progress | None = None
    deadline: DeadlineStatus | None = None
    usage: tuple[Usage, ...] = ()
    lost_seconds: Mapping[str, float] = field(default_factory=dict)


def without_figures(status: Status) -> Status:
    """Return the status with phase, worlds, workers, events, checkpoint; without steps, metrics, seconds, usage."""
    workers = tuple(replace(each, seconds=0.0, **_NO_FIGURES) for each in status.workers)
    told = replace(status, updated=_NEVER, worker_seconds={}, usage=(), workers=workers, hardware={}, lost_seconds={})
    told = replace(told, step=None, progress=None, paces=(), metrics={}, series={})
    told = replace(told, deadline=told.deadline.without_figures() if told.deadline else None)
    return replace(told, throughput=Series(), sample_throughput=Series())


def headline(status: Status) -> Headline:
    """Return the headline of a status."""
    same = {each.name: getattr(status, each.name) for each in fields(Headline) if each.name != "news"}
    news = blake2s(to_json(without_figures(status)).encode(), digest_size=16).hexdigest()
    return Headline(**same | {"reason": shortened(status.reason, MAX_MESSAGE), "news": news})
