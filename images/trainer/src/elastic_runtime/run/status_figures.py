"""Figures of machines in a status, and of the time in which they did not train."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class HardwareColumn(StrEnum):
    """Names in :attr:`Hardware.columns`. What each is, :class:`~elastic_runtime.run.status.WorkerStatus` says."""

    CPU_PERCENT = "cpu_percent"
    MEMORY_BYTES = "memory_bytes"
    RECEIVE = "receive_bytes_per_second"
    TRANSMIT = "transmit_bytes_per_second"
    GPU_PERCENT = "gpu_percent"
    """Mean over the worker's GPUs."""
    GPU_MEMORY_BYTES = "gpu_memory_bytes"
    """Sum over the worker's GPUs."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """A worker's figures over time, in columns of one length: see :mod:`elastic_runtime.launcher.record.hardware`."""

    times: tuple[float, ...] = ()
    """Seconds since 1970 (UTC), ascending."""
    columns: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    """By :class:`HardwareColumn`; None where a figure was not known. A column without any is left out."""


@dataclass(frozen=True, slots=True)
class GpuFigures:
    """One GPU of a worker, at its last heartbeat."""

    index: int
    """Among the worker's own, from 0."""
    name: str
    """Name of the product, from its vendor's library."""
    percent: float | None = None
    """Percent of the time with a running kernel, from the vendor's library. None: not reported (MIG)."""
    memory_bytes: int | None = None
    """In use, by whoever."""
    memory_total_bytes: int | None = None


class LostTime(StrEnum):
    """Keys of :attr:`~elastic_runtime.run.status.Status.lost_seconds`: what a run did while it did not train."""

    STARTING = "starting"
    """Until its first step."""
    RESIZE = "resize"
    """From the last step of a world that nothing was wrong with to the first step of the next."""
    RECOVERY = "recovery"
    """From the last step of a world that lost a rank or a worker to the first step of the next."""
    CHECKPOINT = "checkpoint"
    """Steps held up by durable checkpoints, as ranks tell it; not known where no rank has told of one, since a script
    may write its own."""
    WAITING_FOR_CAPACITY = "waiting_for_capacity"
    """While suspended: fewer workers than the minimum."""
