"""Figures of this worker: what its processes use, and its network interfaces carry."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import psutil

LOOPBACK = "lo"


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


def _counters() -> Mapping[str, Any]:
    counters: Mapping[str, Any] = psutil.net_io_counters(pernic=True)
    return counters


class Network:
    """Bytes a second of all interfaces but the loopback, by psutil; in a pod these are its own.

    Args:
        counters: bytes received and sent so far, by interface.
        clock: monotonic seconds.
    """

    def __init__(
        self, counters: Callable[[], Mapping[str, Any]] = _counters, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._counters, self._clock = counters, clock
        self._before: tuple[float, int, int] | None = None

    def measure(self) -> tuple[float | None, float | None]:
        """Received and sent since the last call; None at the first one, after a counter went back, or when unknown."""
        try:
            cards = [each for name, each in self._counters().items() if name != LOOPBACK]
        except OSError:  # No /proc/net here.
            return None, None
        now = self._clock(), sum(each.bytes_recv for each in cards), sum(each.bytes_sent for each in cards)
        before, self._before = self._before, now
        if before is None or now[0] <= before[0]:
            return None, None
        return _rate(before[1], now[1], now[0] - before[0]), _rate(before[2], now[2], now[0] - before[0])


def _rate(before: int, after: int, seconds: float) -> float | None:
    """An interface may have gone, and its bytes with it."""
    return float(round((after - before) / seconds)) if after >= before else None
