"""A pool on this machine, in a folder: its keeper starts the host, and its host starts a lost keeper."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from typing_extensions import override

from elastic_runtime.errors import ClusterUnavailable, ElasticError, InvalidDocument, InvalidSettings, RunNotFound
from elastic_runtime.pace import RateLimitedLog
from elastic_runtime.pool.connection import Streams, connect
from elastic_runtime.pool.folder import ADDRESS, KeeperProcess, PoolDir
from elastic_runtime.pool.notebook import Notebook
from elastic_runtime.pool.place import HostPlace, KeeperPlace
from elastic_runtime.pool.settings import PoolSettings
from elastic_runtime.pool.status import PoolStatus
from elastic_runtime.printable import printable
from elastic_runtime.retry import Retry, RetryPolicy
from elastic_runtime.run.rundir import LauncherProcess

log = logging.getLogger(__name__)

HOST_NAME = "this-machine"
KEEPER, HOST = "elastic_runtime.pool", "elastic_runtime.pool.host"
IDLE_LIMIT = 60.0
"""Seconds without a keeper and without an agent, after which a host ends."""
_STARTS = RetryPolicy(first=1.0, longest=60.0)
"""Between two processes of one kind that are started."""


async def connect_here(folder: PoolDir) -> Streams:
    """Connect to the keeper of a pool on this machine, in one attempt. Raise ClusterUnavailable."""
    whose = f"the pool in {folder.path}"
    try:
        port = folder.keeper().port
    except (ElasticError, OSError) as error:
        raise ClusterUnavailable(f"the keeper of {whose} cannot be reached: {error}") from error
    return await connect(ADDRESS, port, folder.tls, whose)


class _Process:
    """A process that runs at most once in a pool, with a growing delay between starts."""

    def __init__(self, folder: PoolDir, module: str, words: str) -> None:
        self._folder, self._module, self._words = folder, module, words
        self._process: subprocess.Popen[bytes] | None = None
        self._retry, self._due = Retry(_STARTS), 0.0

    def start_if_due(self, now: float, *, running: bool) -> None:
        """Start the process, unless it runs or was started a moment ago.

        Args:
            now: seconds of a monotonic clock.
            running: whether it runs, also if another process has started it.
        """
        if self._process:
            self._process.poll()  # Reaps it.
        if running or now < self._due:
            return
        self._due = now + self._retry.failed()
        try:
            self._process = self._folder.start(self._module)
        except OSError as error:
            log.warning("%s cannot be started: %s", self._words, printable(error))

    def reset_delay(self) -> None:
        """Allow the next start at once, because the process has connected."""
        self._retry.succeeded()

    @property
    def ids(self) -> tuple[int, ...]:
        """Return its process id, if we have started one."""
        return (self._process.pid,) if self._process else ()


class MachineKeeperPlace(KeeperPlace):
    """Args: folder: of the pool. settings: as they stand there."""

    on_demand = False
    returning = 3.0
    address = ADDRESS

    def __init__(self, folder: PoolDir, settings: PoolSettings) -> None:
        self._folder, self.tls = folder, folder.tls
        self._now = asyncio.get_running_loop().time
        self._host = _Process(folder, HOST, "the warm process of the pool")
        self._notebook = Notebook(folder, settings.notebook) if settings.notebook else None
        self._written: PoolStatus | None = None
        self._limited_log = RateLimitedLog(log)

    @override
    def ports(self) -> tuple[int, ...]:
        """Return the previous keeper's port, then any."""
        with suppress(Exception):  # Whatever is wrong with that file, this keeper is the first one then.
            return (self._folder.keeper().port, 0)
        return (0,)

    @override
    def previous_workers(self) -> int:
        with suppress(Exception):
            return self._folder.status().warm
        return 0

    @override
    async def open(self, port: int, on_change: Callable[[], None]) -> None:
        self._folder.write_keeper(KeeperProcess(port, LauncherProcess.of(os.getpid())))
        log.info("the pool in %s is kept at %s:%d", self._folder.path, ADDRESS, port)

    @override
    def is_up(self) -> bool:
        return self._folder.exists()

    @override
    def settings(self) -> PoolSettings | None:
        try:
            return self._folder.settings()
        except RunNotFound:  # The pool is withdrawn.
            return None
        except (InvalidDocument, InvalidSettings, OSError) as error:
            self._limited_log.warning("the pool's settings cannot be read: %s", printable(error))
            return None

    @override
    def scale(self, workers: int, busy: Collection[str], hosts: Collection[str]) -> None:
        if hosts:
            self._host.reset_delay()
        if workers:
            self._host.start_if_due(self._now(), running=self._folder.has_host())
        if self._notebook:
            self._notebook.tend(self._now())

    @override
    def give_up(self, taken: Collection[str], stuck: Collection[str]) -> None:
        """Do nothing: there is one host, for all workers of this machine."""

    @override
    def trouble(self) -> str:
        return ""

    @override
    def publish(self, status: PoolStatus) -> None:
        if status == self._written:
            return
        try:
            self._folder.write_status(status)
        except OSError as error:
            self._limited_log.warning("the pool's status cannot be written: %s", printable(error))
        else:
            self._written = status

    @override
    async def close(self) -> None:
        if self._notebook:
            await asyncio.to_thread(self._notebook.end)


class MachineHostPlace(HostPlace):
    """Args: folder: of the pool."""

    name = HOST_NAME
    connects_warm = False
    idle_limit = IDLE_LIMIT

    def __init__(self, folder: PoolDir) -> None:
        self._folder, self.agents = folder, folder.agents
        self._keeper = _Process(folder, KEEPER, "a keeper")

    @override
    async def connect(self) -> Streams:
        return await connect_here(self._folder)

    @override
    def arguments(self, worker: str, notices: str) -> tuple[str, ...]:
        return ("--notice-file", str(Path(notices, f"{worker}.json"))) if notices else ()

    @override
    def keeper_is_away(self) -> None:
        """Start another keeper. Launchers do not: their environment is that of one run."""
        if self._folder.exists():
            self._keeper.start_if_due(asyncio.get_running_loop().time(), running=self._folder.has_keeper())

    @override
    def children(self) -> tuple[int, ...]:
        return self._keeper.ids
