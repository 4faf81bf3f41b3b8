"""Platform of a run whose documents are in a folder; its workers are wherever a :class:`FolderWorkers` has them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Protocol

from typing_extensions import override

from elastic_runtime.errors import ClusterUnavailable, InvalidDocument, RunNotFound
from elastic_runtime.launcher.platform import LeaseAge, Platform, WorkerSet, lowest_ranks
from elastic_runtime.net.sockets import host_and_port
from elastic_runtime.pace import RateLimitedLog
from elastic_runtime.printable import printable
from elastic_runtime.retry import Retry, RetryPolicy
from elastic_runtime.run.rundir import RunDir
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import Status

log = logging.getLogger(__name__)

FINAL_STATUS_TIMEOUT = 60.0
"""Seconds for which a final status that cannot be written is tried again; a full disk may be cleared."""
_UNTIL_WRITTEN = RetryPolicy(0.2, 5.0)
WATCH_INTERVAL = 0.02
"""Seconds between two looks at the folder. One stat each: cheaper than a dependency on inotify, and portable."""


class FolderWorkers(WorkerSet, Protocol):
    """Keeps as many workers as are wanted."""

    @abstractmethod
    def open(self, address: str) -> None:
        """Begin.

        Args:
            address: ``HOST:PORT`` of the launcher, for the agents to dial.
        """

    @abstractmethod
    def world(self, ranks: Mapping[str, int]) -> None:
        """Who trains.

        Args:
            ranks: the lowest rank of each worker that has one, by its name.
        """

    @abstractmethod
    def reconcile(self, wanted: int) -> None:
        """Have so many, as soon as can be; called at each look at the folder. Does not block.

        Raises:
            OSError: the system has no room for another.
            ClusterUnavailable: it does not answer.
        """


class FolderPlatform(Platform):
    """See this module. The folder's lock allows one launcher at a time.

    Args:
        folder: of the run.
        spec: what to run.
        workers: that it has.
        address: of the launcher, for agents.
    """

    watch_interval = WATCH_INTERVAL

    def __init__(self, folder: RunDir, spec: RunSpec, workers: FolderWorkers, address: str) -> None:
        self._folder, self._spec = folder, spec
        self._wanted = spec.workers.start
        self._asked: int | str = spec.workers.start
        self._cancel: str | None = None
        self._stacks: str | None = None
        self._requests: str | None = None
        self._lease = LeaseAge(time.monotonic)
        self.workers: FolderWorkers = workers
        self.address = address
        """At which the launcher listens."""
        self._watching: asyncio.Task[None] | None = None
        self._on_change: Callable[[], None] = lambda: None
        self._unwritten: Status | None = None
        self._limited_log = RateLimitedLog(log)

    @override
    def open(self, port: int, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        with contextlib.suppress(OSError):  # Before the first worker: the run may be paused.
            self._read()
        self.workers.open(host_and_port(self.address, port))
        self._watching = asyncio.create_task(self._watch())

    @override
    def asked(self) -> int | str | None:
        return self._asked

    @override
    def ask(self, workers: int) -> None:
        """Write the size at once."""
        self._asked = self._wanted = workers
        try:
            self._folder.write_size(workers)
        except OSError as error:
            log.warning("the size cannot be written: %s", error)

    @override
    def requests(self) -> str | None:
        return self._requests

    @override
    def cancel(self) -> str | None:
        return self._cancel

    @override
    def stacks_asked(self) -> str | None:
        return self._stacks

    @override
    def lease_age(self) -> float | None:
        try:
            self._lease.see(self._folder.lease.stat().st_mtime_ns)
        except FileNotFoundError:
            self._lease.see(None)
        except OSError as error:
            self._limited_log.warning("the lease cannot be seen: %s", printable(error))
        return self._lease()

    @override
    def watched(self) -> bool:
        try:
            return self._folder.watched.exists()
        except OSError:
            return True  # Nobody's run ends because a folder cannot be read for a moment.

    @override
    def publish(self, status: Status) -> None:
        """Write the status. If that fails, the next status replaces it."""
        self.workers.world(lowest_ranks(status))
        self._unwritten = status
        try:
            self._folder.write_status(status)
        except FileNotFoundError:
            self._deleted()
        except OSError as error:
            self._limited_log.warning("the status cannot be written, training goes on: %s", printable(error))
            return
        self._unwritten = None

    @override
    async def flush(self) -> None:
        """Wait until a final status is written, up to a limit. Other statuses are replaced by the next one."""
        retry, now = Retry(_UNTIL_WRITTEN), asyncio.get_running_loop().time
        end = now() + FINAL_STATUS_TIMEOUT
        while self._unwritten is not None and self._unwritten.phase.final:
            if now() >= end:
                log.error("the final status could not be written in %.0f s", FINAL_STATUS_TIMEOUT)
                return
            await retry.pause()
            self.publish(self._unwritten)

    def signalled(self, name: str) -> None:
        """This process was sent a signal of that name: the run is cancelled, unless a place knows better."""
        self.ask_to_end(f"the launcher got {name}")

    def ask_to_end(self, reason: str) -> None:
        """Ask the run to end, as a file ``cancel`` does. Works on a full disk, too."""
        self._cancel = self._cancel or reason
        with contextlib.suppress(OSError):
            self._folder.ask_to_end(reason)
        self._on_change()

    @override
    async def end_workers(self) -> None:
        await self.close()

    @override
    async def close(self) -> None:
        if self._watching:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
            self._watching = None
        await self.workers.end_workers()

    async def _watch(self) -> None:
        seen, pause = 0, Retry(_UNTIL_WRITTEN)
        while True:
            try:
                changed = self._folder.path.stat().st_mtime_ns
                if changed != seen:
                    self._read()
                    seen = changed
                self.workers.reconcile(self._wanted)
                pause.succeeded()
            except FileNotFoundError:
                return self._deleted()
            except (OSError, ClusterUnavailable) as error:
                self._limited_log.warning("sizes and workers are not looked after for a moment: %s", printable(error))
                await pause.pause()
            except Exception as error:  # noqa: BLE001  # or nobody could change or end the run any more
                kind = type(error).__name__
                self._limited_log.warning(
                    "the run's folder cannot be handled, trying again: %s: %s", kind, printable(error)
                )
                await pause.pause()
            await asyncio.sleep(self.watch_interval)

    def _read(self) -> None:
        before = self._asked, self._cancel, self._stacks, self._requests
        # The end first: a size that cannot be read keeps nobody from ending the run.
        for read in (self._read_cancel, self._read_requests, self._read_size, self._read_stacks):
            try:
                read()
            except (RunNotFound, InvalidDocument) as error:
                log.warning("%s", printable(error))
        if before != (self._asked, self._cancel, self._stacks, self._requests):
            self._on_change()

    def _read_cancel(self) -> None:
        self._cancel = self._folder.asked_to_end() or self._cancel

    def _read_size(self) -> None:
        workers = self._spec.workers
        self._asked = self._folder.asked_size()
        if isinstance(self._asked, int) and self._asked:  # No worker at all: the launcher alone says that.
            self._wanted = min(max(self._asked, workers.minimum), workers.maximum)

    def _read_requests(self) -> None:
        self._requests = self._folder.requests()

    def _read_stacks(self) -> None:
        self._stacks = self._folder.stacks_asked()

    def _deleted(self) -> None:
        """Somebody has removed the run from under us: nobody can want it any more."""
        self._cancel = "its folder has been deleted"
        self._on_change()
