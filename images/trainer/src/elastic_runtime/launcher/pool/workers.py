"""The workers of a run of this machine that a pool's keeper has forked for it."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable

from typing_extensions import override

from elastic_runtime.launcher.folder.platform import FolderWorkers
from elastic_runtime.launcher.local.workers import agent_arguments, make_scratch
from elastic_runtime.launcher.pool.member import PoolMember
from elastic_runtime.pool.folder import PoolDir
from elastic_runtime.pool.machine import connect_here
from elastic_runtime.pool.messages import AGENT_FILES, Launch
from elastic_runtime.run.pool import PoolSpec
from elastic_runtime.run.rundir import RunDir
from elastic_runtime.run.spec import RunSpec


class PoolWorkers(PoolMember, FolderWorkers):
    """A :class:`PoolMember` whose agents are processes of this machine.

    Args:
        folder: of the run.
        spec: of the run.
        pool: its place there.
        place: the pool's folder.
        on_change: called when there is something new.
    """

    def __init__(
        self, folder: RunDir, spec: RunSpec, pool: PoolSpec, place: PoolDir, on_change: Callable[[], None]
    ) -> None:
        super().__init__(spec, pool, lambda: connect_here(place), on_change)
        self._folder, self._place = folder, place

    @override
    def open(self, address: str) -> None:
        make_scratch(self._folder, self._spec)
        tls = self._folder.tls
        launch = Launch(
            tuple(agent_arguments(self._folder, self._spec, address)),
            str(self._folder.notices),
            os.getcwd(),
            {**os.environ, **self._spec.environment},
            {name: (tls / name).read_text() for name in AGENT_FILES},
        )
        self.begin(launch)

    @override
    def is_up(self) -> bool:
        return self._place.exists()

    @override
    def has_notice(self, worker: str, /) -> bool:
        return self._folder.notice(worker).exists()

    @override
    async def end_workers(self) -> None:
        await super().end_workers()
        if self._spec.scripts:  # An agent that was killed leaves its folder.
            await asyncio.to_thread(shutil.rmtree, self._folder.scratch, ignore_errors=True)
