"""A run's status in Prometheus' text format, by its own client library. The names: docs/observing.md. Pure.

Labels are bounded: the run's name, the workers that are present, phases, causes and kinds that the status knows, and
the names of the metrics that the script reports, of which a status keeps at most
:data:`~elastic_runtime.run.status.MAX_METRICS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.run.status import EventKind, Phase, Status, WorkerState

try:
    from prometheus_client import generate_latest
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
except ImportError as error:
    raise InvalidSettings(
        "observe.prometheus",
        f"the launcher cannot import prometheus_client: {error}",
        "Install elastic-runtime[prometheus] in the trainer's image",
    ) from None

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "elastic_training_"
MOST_WORKERS = 1000
"""Present ones that are told of one by one."""
_Value = Callable[[Status], float | None]


def _checkpoint_age(status: Status) -> float | None:
    written = status.checkpoint
    return max(0.0, (status.updated - written.time).total_seconds()) if written else None


def _checkpoint_step(status: Status) -> int | None:
    return status.checkpoint.step if status.checkpoint else None


_GAUGES: tuple[tuple[str, str, _Value], ...] = (
    ("world_size", "Ranks that train together now.", lambda status: status.world_size),
    ("workers_wanted", "Workers asked for.", lambda status: status.target_size),
    ("step", "Newest global step reported.", lambda status: status.step),
    ("steps_per_second", "Of late.", lambda status: _last(status.throughput.values)),
    ("samples_per_second", "Of late.", lambda status: _last(status.sample_throughput.values)),
    ("checkpoint_age_seconds", "Since the newest durable checkpoint was taken.", _checkpoint_age),
    ("checkpoint_step", "Global step of the newest durable checkpoint.", _checkpoint_step),
)
_COUNTERS: tuple[tuple[str, str, Callable[[Status], float]], ...] = (
    ("worlds", "Generations so far.", lambda status: status.generation),
    ("rank_failures", "Ranks that ended by themselves with an error.", lambda status: status.rank_failures),
    ("forced_resets", "Worlds that were ended by a loss or a failure.", lambda status: status.forced_resets),
    ("worker_seconds", "Time of all workers.", lambda status: sum(status.worker_seconds.values())),
)
_OF_WORKERS = (
    ("worker_cpu_percent", "Of one core, agent and ranks together.", "cpu_percent"),
    ("worker_memory_bytes", "Resident, agent and ranks together.", "memory_bytes"),
    ("worker_receive_bytes_per_second", "From the network.", "receive_bytes_per_second"),
    ("worker_transmit_bytes_per_second", "To the network.", "transmit_bytes_per_second"),
)
_OF_GPUS = (
    ("worker_gpu_percent", "Utilisation of one GPU.", "percent"),
    ("worker_gpu_memory_bytes", "Memory of one GPU that is in use.", "memory_bytes"),
)


def exposition(status: Status) -> bytes:
    """All of it. Raises nothing that a status can cause."""
    return bytes(generate_latest(cast(Any, _Registry(status))))


class _Registry:
    """All that the library asks of one."""

    def __init__(self, status: Status) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Return the metrics of the status."""
        return _families(self._status)


def _families(status: Status) -> Iterator[Metric]:
    run = [status.run]
    for name, text, value in _GAUGES:
        if (number := value(status)) is not None:
            yield _one(GaugeMetricFamily(PREFIX + name, text, labels=["run"]), run, number)
    for name, text, value in _COUNTERS:
        yield _one(CounterMetricFamily(PREFIX + name, text, labels=["run"]), run, value(status))
    phases = GaugeMetricFamily(f"{PREFIX}phase", "1 for the phase that the run is in.", labels=["run", "phase"])
    for phase in Phase:
        phases.add_metric([*run, phase.value], float(status.phase is phase))
    yield phases
    states = GaugeMetricFamily(f"{PREFIX}workers", "Workers that are present, by state.", labels=["run", "state"])
    for state in WorkerState:
        if not state.gone:
            states.add_metric([*run, state.value], sum(worker.state is state for worker in status.workers))
    yield states
    lost = CounterMetricFamily(f"{PREFIX}lost_seconds", "Time without training, by cause.", labels=["run", "cause"])
    for cause, seconds in status.lost_seconds.items():
        lost.add_metric([*run, cause], seconds)
    yield lost
    events = GaugeMetricFamily(f"{PREFIX}events", "Those that the status keeps, by kind.", labels=["run", "kind"])
    for kind in EventKind:
        events.add_metric([*run, kind.value], sum(event.kind is kind for event in status.events))
    yield events
    reported = GaugeMetricFamily(f"{PREFIX}reported", "Newest value that the script reports.", labels=["run", "name"])
    for name, newest in status.metrics.items():
        reported.add_metric([*run, name], newest)
    yield reported
    yield from _of_workers(status)


def _of_workers(status: Status) -> Iterator[Metric]:
    here = [worker for worker in status.workers if not worker.state.gone][:MOST_WORKERS]
    for name, text, field in _OF_WORKERS:
        family = GaugeMetricFamily(PREFIX + name, text, labels=["run", "worker"])
        for worker in here:
            if (number := getattr(worker, field)) is not None:
                family.add_metric([status.run, worker.name], number)
        yield family
    for name, text, field in _OF_GPUS:
        family = GaugeMetricFamily(PREFIX + name, text, labels=["run", "worker", "gpu"])
        for worker in here:
            for gpu in worker.gpus:
                if (number := getattr(gpu, field)) is not None:
                    family.add_metric([status.run, worker.name, str(gpu.index)], number)
        yield family


def _one(family: GaugeMetricFamily | CounterMetricFamily, labels: list[str], value: float) -> Metric:
    family.add_metric(labels, value)
    return family


def _last(values: tuple[float, ...]) -> float | None:
    return values[-1] if values else None
