"""Changes of runs as Airflow's own metrics: StatsD, Datadog or OpenTelemetry. Names: docs/results.md."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from typing_extensions import override

from elastic_runtime.run.status import Status
from elastic_training.airflow.sdk import conf
from elastic_training.airflow.versions import stats
from elastic_training.concurrency.bridge import bridged
from elastic_training.concurrency.daemons import in_daemon
from elastic_training.identity.ownership import read_owner
from elastic_training.listeners.audience import Listener
from elastic_training.listeners.changes import Change, ChangeKind

PREFIX = "elastic_training."
GAUGES_EVERY = 10.0
"""Seconds between two values of the gauges of one run, unless something happens: a triggerer may have a thousand."""
_BACKENDS = ("statsd_on", "statsd_datadog_enabled", "otel_on")
SAMPLES = "samples_per_second"
"""Metric that a script may report itself."""
_COUNTED = {
    ChangeKind.CREATED: "runs.created",
    ChangeKind.ADOPTED: "runs.adopted",
    ChangeKind.RESIZED: "resizes",
    ChangeKind.REFORMED: "reformed",
    ChangeKind.NOTICED: "notices",
    ChangeKind.CHECKPOINTED: "checkpoints",
}


@dataclass(frozen=True, slots=True)
class Metric:
    """One value for Airflow's ``Stats``."""

    method: str
    """``incr``, ``timing`` or ``gauge``."""
    name: str
    value: Any
    """With ``timing``, a timedelta."""


def wanted() -> bool:
    """Whether this Airflow has metrics at all."""
    return any(conf.getboolean("metrics", name, fallback=False) for name in _BACKENDS)


def counts(news: Sequence[Change]) -> Iterator[Metric]:
    """Return the counters of these changes. Pure."""
    for change in news:
        if change.kind in _COUNTED:
            yield Metric("incr", PREFIX + _COUNTED[change.kind], 1)
        if change.kind is ChangeKind.FINISHED:
            yield Metric("incr", f"{PREFIX}runs.ended.{change.failure or 'succeeded'}", 1)
        if change.seconds:
            yield Metric("timing", f"{PREFIX}recovery", timedelta(seconds=change.seconds))


def gauges(status: Status) -> Iterator[Metric]:
    """Return the gauges of a run's status. Pure."""
    written, progress = status.checkpoint, status.progress
    values: dict[str, float | None] = {
        "world_size": status.world_size,
        "workers_wanted": status.target_size,
        "step": status.step,
        "progress_percent": progress.percent if progress else None,
        "time_left": progress.seconds if progress else None,
        "time_left_least": progress.least if progress else None,
        "time_left_most": progress.most if progress else None,
        "steps_per_second": status.throughput.values[-1] if status.throughput.values else None,
        SAMPLES: status.metrics.get(SAMPLES),
        "checkpoint_age": max(0.0, (status.updated - written.time).total_seconds()) if written else None,
    }
    for name, value in values.items():
        if value is not None:
            yield Metric("gauge", PREFIX + name, value)


def spent(status: Status) -> Iterator[Metric]:
    """Return the counters of the time of a run that is over, in whole seconds. Pure."""
    used = sum(each.seconds for each in status.usage)
    idle = sum(each.idle_seconds for each in status.usage)
    values = {
        "spent_trained_seconds": used - idle,
        "spent_idle_seconds": idle,
        "spent_lost_seconds": sum(status.lost_seconds.values()),
    }
    for name, value in values.items():
        if value >= 1:
            yield Metric("incr", PREFIX + name, round(value))


class MetricsListener(Listener):
    """Counts, and gauges from time to time, tagged with ``dag_id`` and ``task_id``.

    Args:
        owner: whose try it is.
    """

    def __init__(self, owner: str) -> None:
        task = read_owner(owner)
        self._tags = {"dag_id": task.dag_id, "task_id": task.task_id} if task else {}
        self._due = 0.0

    @override
    async def handle(self, status: Status | None, news: Sequence[Change]) -> None:
        metrics = list(counts(news))
        if status is not None and any(change.kind is ChangeKind.FINISHED for change in news):
            metrics += spent(status)
        if status is not None and (news or time.monotonic() >= self._due):
            self._due = time.monotonic() + GAUGES_EVERY
            metrics += gauges(status)
        if metrics:
            # In a thread, as the first of a process looks the server's name up.
            await in_daemon(_send, metrics, self._tags, in_triggerer=bridged() is None)


def _send(metrics: Sequence[Metric], tags: Mapping[str, str], *, in_triggerer: bool) -> None:
    backend = stats(in_triggerer=in_triggerer)
    for metric in metrics:
        getattr(backend, metric.method)(metric.name, metric.value, tags=dict(tags))
