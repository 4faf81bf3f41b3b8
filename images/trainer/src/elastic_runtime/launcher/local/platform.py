"""Platform on this machine: the run's folder, and a worker set of child processes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from elastic_runtime.errors import InvalidDocument, RunNotFound
from elastic_runtime.launcher.lease import LeaseAge
from elastic_runtime.launcher.local.workers import LocalWorkers
from elastic_runtime.launcher.platform import Platform
from elastic_runtime.rundir import RunDir
from elastic_runtime.spec import RunSpec
from elastic_runtime.status import Status

log = logging.getLogger(__name__)

ADDRESS = "127.0.0.1"
WATCH_INTERVAL = 0.02
"""Seconds between two looks at the folder. One stat each: cheaper than a dependency on inotify, and portable."""


class LocalPlatform(Platform):
    """What the folder says. Its lock sees to it that there is one launcher at a time."""

    def __init__(self, folder: RunDir, spec: RunSpec) -> None:
        self._folder, self._spec = folder, spec
        self._wanted = spec.workers.start
        self._cancel: str | None = None
        self._lease = LeaseAge(time.monotonic)
        self._workers = LocalWorkers(folder, spec)
        self._watching: asyncio.Task[None] | None = None
        self._on_change: Callable[[], None] = lambda: None

    def open(self, port: int, on_change: Callable[[], None]) -> None:
        """See :class:`Platform`."""
        self._on_change = on_change
        self._workers.open(f"{ADDRESS}:{port}")
        self._watching = asyncio.create_task(self._watch())

    def wanted(self) -> int:
        """See :class:`Platform`."""
        return self._wanted

    def cancel(self) -> str | None:
        """See :class:`Platform`."""
        return self._cancel

    def lease_age(self) -> float | None:
        """See :class:`Documents`."""
        try:
            self._lease.see(self._folder.lease.stat().st_mtime_ns)
        except FileNotFoundError:
            self._lease.see(None)
        return self._lease()

    def watched(self) -> bool:
        """See :class:`Platform`."""
        return self._folder.watched.exists()

    def publish(self, status: Status) -> None:
        """See :class:`Platform`."""
        try:
            self._folder.write_status(status)
        except FileNotFoundError:
            self._deleted()

    async def end_workers(self) -> None:
        """See :class:`Platform`."""
        await self.close()

    async def close(self) -> None:
        """See :class:`Platform`."""
        if self._watching:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
            self._watching = None
        await self._workers.close()

    async def _watch(self) -> None:
        seen = 0
        while True:
            try:
                changed = self._folder.path.stat().st_mtime_ns
            except FileNotFoundError:
                return self._deleted()
            if changed != seen:
                seen = changed
                self._read()
            self._workers.reconcile(self._wanted)
            await asyncio.sleep(WATCH_INTERVAL)

    def _read(self) -> None:
        before = self._wanted, self._cancel
        try:
            workers = self._spec.workers
            self._wanted = min(max(self._folder.read_size(), workers.minimum), workers.maximum)
            if self._folder.cancel.exists():
                self._cancel = self._folder.cancel.read_text(encoding="utf-8")
        except (RunNotFound, InvalidDocument) as error:
            log.warning("%s", error)
        if before != (self._wanted, self._cancel):
            self._on_change()

    def _deleted(self) -> None:
        """Somebody has removed the run from under us: nobody can want it any more."""
        self._cancel = "its folder has been deleted"
        self._on_change()
