"""The keeper of a pool: knows what its runs wish for, and has the workers forked for them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
from typing import Any

from elastic_runtime.errors import InvalidDocument, InvalidSettings, RunNotFound
from elastic_runtime.net.certificates import launcher_context
from elastic_runtime.net.framing import MAX_LINE
from elastic_runtime.net.sockets import end_when_silent
from elastic_runtime.pace import RateLimitedLog
from elastic_runtime.pool.connection import SILENCE, receive
from elastic_runtime.pool.folder import ADDRESS, KeeperProcess, PoolDir
from elastic_runtime.pool.ledger import Ledger
from elastic_runtime.pool.messages import FROM_KEEPER, TO_KEEPER, AgentEnded, EndHost, HostHello, RunHello, Wishes
from elastic_runtime.pool.notebook import Notebook
from elastic_runtime.pool.settings import PoolSettings
from elastic_runtime.pool.status import PoolStatus
from elastic_runtime.printable import printable
from elastic_runtime.retry import Retry, RetryPolicy
from elastic_runtime.run.rundir import LauncherProcess

log = logging.getLogger(__name__)

GREETING = 10.0
"""Seconds for TLS's handshake, and then for the hello."""
TICK = 0.5
"""Seconds between two looks, at most."""
RETURNING = 3.0
"""Seconds that launchers and hosts have to dial a keeper that takes another one's place, before it divides anything."""
BACKLOG = 8 * 1024 * 1024
"""Bytes that wait for somebody who does not read, at most."""
FAREWELL = 2.0
"""Seconds in which connections end in order."""
HOST = "elastic_runtime.pool.host"
_HOSTS = RetryPolicy(first=1.0, longest=60.0)


class Keeper:
    """Args: folder: of the pool. settings: as they stand there."""

    def __init__(self, folder: PoolDir, settings: PoolSettings) -> None:
        self._folder, self._settings = folder, settings
        self._ledger = Ledger(settings)
        self._writers: dict[str, asyncio.StreamWriter] = {}
        """Of runs by uid, and of hosts by name."""
        self._serving: set[asyncio.Task[Any]] = set()
        self._now = asyncio.get_running_loop().time
        self._changed, self._ended = asyncio.Event(), asyncio.Event()
        self._limited_log = RateLimitedLog(log)
        self._host_retry, self._host_due = Retry(_HOSTS), 0.0
        self._host: subprocess.Popen[bytes] | None = None
        self._written: PoolStatus | None = None
        self._notebook = Notebook(folder, settings.notebook) if settings.notebook else None

    async def run(self) -> None:
        """Until SIGTERM, or until the pool is withdrawn: then its hosts end, too. Raises OSError."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._ended.set)
        begins = self._now() + (RETURNING if self._follows_another() else 0.0)
        server = await self._listen()
        port = server.sockets[0].getsockname()[1]
        self._folder.write_keeper(KeeperProcess(port, LauncherProcess.of(os.getpid())))
        log.info("pool %s of %d workers is kept at %s:%d", self._settings.name, self._settings.maximum, ADDRESS, port)
        try:
            while not self._ended.is_set() and self._folder.exists():
                self._changed.clear()
                if (early := begins - self._now()) <= 0:
                    self._settle()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(TICK if early <= 0 else early):
                        await (self._changed if early <= 0 else self._ended).wait()
        finally:
            for name in self._ledger.hosts:
                self._send(name, EndHost())
            if self._notebook:
                await asyncio.to_thread(self._notebook.end)
            server.close()
            for writer in list(self._writers.values()):
                writer.close()
            if self._serving:
                _, late = await asyncio.wait(self._serving, timeout=FAREWELL)
                for task in late:
                    task.cancel()
                await asyncio.gather(*late, return_exceptions=True)

    def _follows_another(self) -> bool:
        try:
            return bool(self._folder.status().warm)
        except Exception:  # noqa: BLE001  # whatever stands there: this keeper is the first, or as good as that
            return False

    async def _listen(self) -> asyncio.Server:
        """At the port of the keeper before, so that nobody has to look for another one."""
        context = launcher_context(self._folder.tls)
        ports = [0]
        with contextlib.suppress(Exception):
            ports.insert(0, self._folder.keeper().port)
        for port in ports:
            try:
                return await asyncio.start_server(
                    self._serve, ADDRESS, port, ssl=context, limit=MAX_LINE, ssl_handshake_timeout=GREETING
                )
            except OSError:
                if not port:
                    raise
        raise AssertionError("port 0 is the last")

    def _settle(self) -> None:
        self._resize()
        for name, message in self._ledger.settle(self._now()):
            self._send(name, message)
        self._have_host()
        if self._notebook:
            self._notebook.tend(self._now())
        status = self._ledger.status()
        if status != self._written:
            try:
                self._folder.write_status(status)
            except OSError as error:
                self._limited_log.warning("the pool's status cannot be written: %s", printable(error))
            else:
                self._written = status

    def _resize(self) -> None:
        """Have the size that the folder says: it changes while the pool is up."""
        try:
            found = self._folder.settings()
        except RunNotFound:  # The pool is withdrawn.
            return
        except (InvalidDocument, InvalidSettings, OSError) as error:
            self._limited_log.warning("the pool's settings cannot be read: %s", printable(error))
            return
        if found.size != self._settings.size:
            self._settings = self._settings.resized(found.size)
            self._ledger.resized(self._settings)
            log.info("pool %s has %d workers now", self._settings.name, self._settings.maximum)

    def _have_host(self) -> None:
        if self._host:
            self._host.poll()  # Reaps it.
        if not self._ledger.wants_host or self._now() < self._host_due or self._folder.has_host():
            return
        self._host_due = self._now() + self._host_retry.failed()
        try:
            self._host = self._folder.start(HOST)
        except OSError as error:
            self._limited_log.warning("the warm process of the pool cannot be started: %s", printable(error))

    def _send(self, name: str, message: object) -> None:
        writer = self._writers.get(name)
        if writer is None or writer.is_closing():
            return
        writer.write(FROM_KEEPER.write(message))  # type: ignore[arg-type]  # to a run or to a host
        if writer.transport.get_write_buffer_size() > BACKLOG:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, whose certificate is of this pool."""
        task = asyncio.current_task()
        assert task is not None  # a coroutine runs in one
        self._serving.add(task)
        try:
            end_when_silent(writer.get_extra_info("socket"), SILENCE)
            async with asyncio.timeout(GREETING):
                hello = await receive(reader, TO_KEEPER)
            if isinstance(hello, RunHello):
                self._ledger.run_came(hello)
                await self._converse(hello.uid, reader, writer, of_run=True)
            elif isinstance(hello, HostHello):
                self._ledger.host_came(hello, self._now())
                self._host_retry.succeeded()
                await self._converse(hello.host, reader, writer, of_run=False)
            else:
                raise InvalidDocument("somebody with a certificate of this pool connected, but said no hello")
        except (OSError, InvalidDocument) as error:
            self._limited_log.warning("a connection to the pool: %s", printable(str(error) or "no hello in time"))
        finally:
            writer.transport.abort()
            self._serving.discard(task)

    async def _converse(
        self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, of_run: bool
    ) -> None:
        self._writers[name] = writer
        self._changed.set()
        try:
            while (message := await receive(reader, TO_KEEPER)) is not None:
                if isinstance(message, Wishes) and of_run:
                    for target, order in self._ledger.run_wishes(name, message):
                        self._send(target, order)
                elif isinstance(message, AgentEnded) and not of_run:
                    self._ledger.agent_ended(name, message, self._now())
                else:
                    raise InvalidDocument(f"{type(message).__name__} is not for its sender to say")
                self._changed.set()
        finally:
            del self._writers[name]
            if of_run:
                self._ledger.run_gone(name, self._now())
            else:
                self._ledger.host_gone(name)
            self._changed.set()
