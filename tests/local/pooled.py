"""A pool on this machine, and runs that have their workers of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from elastic_runtime.pool.folder import pool_folder
from elastic_runtime.pool.settings import PoolSettings
from elastic_runtime.run.pool import PoolSpec
from elastic_runtime.run.rundir import RunDir
from tests.local.harness import ScriptedRun
from tests.paced import Script, until

NAME = "team-a"
KEEPER = "elastic_runtime.pool"
WARM = "workers start warm"


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
    ) -> ScriptedRun:
        """Start a run."""
        name = f"run-{len(self._runs)}"
        pool = PoolSpec(NAME, priority, spec.pop("greedy", False))
        made = ScriptedRun(self.root / f"{name}-files", script, workers, engine=engine, pool=pool, **spec)
        made.folder = RunDir(self.root / name)
        self._runs.append(made)
        return made.start()
