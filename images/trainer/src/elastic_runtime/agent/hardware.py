"""Figures of this worker: what its processes use, and which devices its slots get."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil


class Usage:
    """Processor time and memory of a changing set of processes, by psutil."""

    def __init__(self) -> None:
        self._known: dict[int, psutil.Process] = {}

    def measure(self, pids: Iterable[int]) -> tuple[float, int]:
        """Percent of one core since the last call, and resident bytes, summed over these processes."""
        self._known = {pid: self._known.get(pid) or process for pid in pids if (process := _process(pid))}
        cpu, memory = 0.0, 0
        for process in self._known.values():
            try:
                cpu += process.cpu_percent()
                memory += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        return round(cpu, 1), memory


def _process(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except psutil.NoSuchProcess:
        return None


def gpus(environ: Mapping[str, str] = os.environ) -> list[str]:
    """What may stand in CUDA_VISIBLE_DEVICES: as the environment says, else one index per device file of the driver."""
    if "CUDA_VISIBLE_DEVICES" in environ:
        return [name for name in environ["CUDA_VISIBLE_DEVICES"].split(",") if name]
    return [str(index) for index, _ in enumerate(sorted(Path("/dev").glob("nvidia[0-9]*")))]


def slot_environment(slot: int, slots: int, devices: list[str]) -> dict[str, str]:
    """Give a slot the devices that are its own.

    Horovod sees each slot as a host, so ``hvd.local_rank()`` is 0 everywhere: with one GPU visible to each rank,
    scripts that choose theirs by it are right.
    """
    share = len(devices) // slots
    if not share:
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(devices[slot * share : (slot + 1) * share])}
