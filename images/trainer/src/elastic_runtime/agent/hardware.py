"""Figures of this worker: what its processes use."""

from __future__ import annotations

from collections.abc import Iterable

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
