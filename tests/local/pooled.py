"""A pool on this machine, and runs that have their workers of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from elastic_runtime.pool.folder import pool_folder
from elastic_runtime.pool.settings import PoolSettings
from elastic_runtime.run.pool import PoolSpec
from elastic_runtime.run.rundir import RunDir
from elastic_runtime.run.status import Status
from tests.local.harness import ScriptedRun
from tests.paced import Script, until

NAME = "team-a"
KEEPER = "elastic_runtime.pool"
WARM = "workers start warm"
GIVEN_BACK = 10.0
"""Seconds in which workers that a run has given back have ended."""


class Pool:
    """Args: root: folder of the pool and of its runs, which has to be empty. workers: most that there are."""

    def __init__(self, root: Path, workers: int) -> None:
        self.root, self.folder = root, pool_folder(root, NAME)
        self._workers = workers
        self._runs: list[ScriptedRun] = []

    @contextmanager
    def kept(self) -> Iterator[Pool]:
        """Up, and warm; nothing of it is left afterwards."""
        self.folder.create(PoolSettings(NAME, 1, self._workers))
        keeper = self.folder.start(KEEPER)
        try:
            until(lambda: WARM in self.folder.log.read_text(), self.folder.log.read_text)
            yield self
        finally:
            for run in self._runs:
                run.close()
            self.folder.withdraw()
            keeper.wait()
            until(lambda: not (self.folder.has_keeper() or self.folder.has_host()), self.folder.log.read_text)

    def resize(self, workers: int) -> None:
        """Have so many workers at most."""
        settings = self.folder.settings()
        self.folder.write_settings(settings.resized(replace(settings.size, maximum=workers)))

    def run(
        self, script: Script, workers: tuple[int, int, int], priority: int, engine: str = "torch", **spec: Any
    ) -> PooledRun:
        """Start a run."""
        base = self.root / f"run-{len(self._runs)}"
        made = PooledRun(self, base, script, workers, priority=priority, engine=engine, **spec)
        self._runs.append(made)
        made.start()
        return made


class PooledRun(ScriptedRun):
    """A run with workers of a pool, which are known by its status alone: they are forks of the pool's warm process.

    Args:
        pool: that is kept.
        priority: among the runs of the pool.
        greedy: whether it takes what nobody else asks for.
        others: of :class:`~tests.local.harness.ScriptedRun`.
    """

    def __init__(self, pool: Pool, *others: Any, priority: int = 1, greedy: bool = False, **more: Any) -> None:
        super().__init__(*others, pool=PoolSpec(NAME, priority, greedy), **more)
        self.folder = RunDir(pool.root / f"{self.base.name}-run")
        self._forks: set[psutil.Process] = set()

    def look(self) -> Status | None:
        status = super().look()
        for pid in (pid for worker in (status.workers if status else ()) for pid in worker.pids):
            with suppress(psutil.NoSuchProcess):
                self._forks.add(psutil.Process(pid))  # Which is another one's, where the number is used again.
        return status

    def owns(self, process: psutil.Process) -> bool:
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                return False
            return super().owns(process) or process in self._forks or str(self.folder.path) in process.cmdline()
        except psutil.NoSuchProcess:
            return False

    def assert_no_process(self, max_wait: float = 0.0) -> None:
        super().assert_no_process(max(max_wait, GIVEN_BACK))
