"""torch's profiler, for the steps that a run asks for."""

from __future__ import annotations

import atexit
import os
from pathlib import Path
from typing import Any

from elastic_runtime.world import current_world

PROFILED = ".pt.trace.json.gz"


class Profiling:
    """Sees global steps ``first`` to ``first + count`` from commit to commit, and writes one file."""

    def __init__(self, folder: Path, asked: str) -> None:
        first, _, count = asked.partition(":")
        self._first, self._end, self._folder = int(first), int(first) + int(count), folder
        self._profiler: Any = None
        self._over = False

    def committed(self, step: int) -> None:
        """This rank has committed that step."""
        if self._over:
            return
        if self._profiler is None and self._first <= step < self._end:
            self._start()
        elif self._profiler is not None and step >= self._end:
            self.end()

    def _start(self) -> None:
        import torch
        from torch import profiler

        kinds = {profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.CUDA}
        self._profiler = profiler.profile(
            activities=kinds if torch.cuda.is_available() else {profiler.ProfilerActivity.CPU}
        )
        self._profiler.start()
        atexit.register(self.end)

    def end(self) -> None:
        """Write what there is."""
        profiler, self._profiler, self._over = self._profiler, None, True
        if profiler is None:
            return
        profiler.stop()
        world = current_world()
        rank = f"rank-{world.rank}-" if world.connected else ""
        hidden = self._folder / f".{os.getpid()}.json.gz"
        profiler.export_chrome_trace(str(hidden))
        hidden.rename(self._folder / f"{rank}{world.name or os.getpid()}{PROFILED}")
