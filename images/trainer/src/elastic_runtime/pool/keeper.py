"""The keeper of a pool: knows what its runs wish for, and has the workers forked for them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from typing import Any

from elastic_runtime.errors import InvalidDocument
from elastic_runtime.net.certificates import launcher_context
from elastic_runtime.net.framing import MAX_LINE
from elastic_runtime.net.sockets import end_when_silent
from elastic_runtime.pace import RateLimitedLog
from elastic_runtime.pool.connection import SILENCE, receive
from elastic_runtime.pool.ledger import Ledger, Orders
from elastic_runtime.pool.messages import (
    FROM_KEEPER,
    TO_KEEPER,
    AgentEnded,
    EndHost,
    HostHello,
    HostLeaves,
    Refused,
    RunHello,
    Wishes,
)
from elastic_runtime.pool.place import KeeperPlace
from elastic_runtime.pool.settings import PoolSettings
from elastic_runtime.printable import printable

log = logging.getLogger(__name__)

GREETING = 10.0
"""Seconds for TLS's handshake, and then for the hello."""
TICK = 0.5
"""Seconds between two looks, at most."""
BACKLOG = 8 * 1024 * 1024
"""Bytes that wait for somebody who does not read, at most."""
REFUSED = 60.0
"""Seconds for which runs that wait are told that a connection was refused: it may have been a host's."""
FAREWELL = 2.0
"""Seconds in which connections end in order."""


class Keeper:
    """Args: place: that the pool is in. settings: as they stand there."""

    def __init__(self, place: KeeperPlace, settings: PoolSettings) -> None:
        self._place, self._settings = place, settings
        self._follows = place.previous_workers()
        self._ledger = Ledger(settings, on_demand=place.on_demand, standing=self._follows)
        self._writers: dict[str, asyncio.StreamWriter] = {}
        """Of runs by uid, and of hosts by name."""
        self._serving: set[asyncio.Task[Any]] = set()
        self._now = asyncio.get_running_loop().time
        self._changed, self._ended = asyncio.Event(), asyncio.Event()
        self._refused = (0.0, "")
        """When a connection was refused last, and why."""
        self._limited_log = RateLimitedLog(log)

    async def run(self) -> None:
        """Until SIGTERM, or until the pool is taken down: then its hosts end, too. Raises OSError or ElasticError."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end)
        begins = self._now() + (self._place.returning if self._follows else 0.0)
        server = await self._listen()
        try:
            await self._place.open(server.sockets[0].getsockname()[1], self._changed.set)
            while not self._ended.is_set() and self._place.is_up():
                self._changed.clear()
                if self._now() >= begins or self._are_back():
                    begins = self._now()
                    self._settle()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(TICK):
                        await self._changed.wait()
        finally:
            await self._close(server)

    def _end(self) -> None:
        self._ended.set()
        self._changed.set()

    def _are_back(self) -> bool:
        """Whether all hosts of the previous keeper have connected to this one."""
        return self._place.on_demand and len(self._ledger.hosts) >= self._follows

    async def _close(self, server: asyncio.Server) -> None:
        if not (self._place.on_demand and self._place.is_up()):  # Or another keeper starts where they are.
            for name in self._ledger.hosts:
                self._send(name, EndHost())
        await self._place.close()
        server.close()
        for writer in list(self._writers.values()):
            writer.close()
        if self._serving:
            _, late = await asyncio.wait(self._serving, timeout=FAREWELL)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _listen(self) -> asyncio.Server:
        """At the port of the keeper before, so that nobody has to look for another one."""
        context = launcher_context(self._place.tls)
        *preferred, last = self._place.ports()
        for port in (*preferred, last):
            try:
                return await asyncio.start_server(
                    self._serve, self._place.address, port, ssl=context, limit=MAX_LINE, ssl_handshake_timeout=GREETING
                )
            except OSError:
                if port == last:
                    raise
        raise AssertionError("the last port is tried")

    def _settle(self) -> None:
        self._resize()
        place, ledger, now = self._place, self._ledger, self._now()
        self._deliver(ledger.settle(now, place.trouble() or self._refusal(now)))
        place.scale(ledger.wanted, ledger.busy_hosts, ledger.hosts)
        place.give_up(*ledger.given_up(now))
        place.publish(ledger.status())

    def _refusal(self, now: float) -> str:
        when, reason = self._refused
        return f"the keeper has refused a connection: {reason}" if reason and now - when < REFUSED else ""

    def _resize(self) -> None:
        """Have the size that stands there: it changes while the pool is up."""
        found = self._place.settings()
        if found is not None and found.size != self._settings.size:
            self._settings = self._settings.resized(found.size)
            self._ledger.resized(self._settings)
            log.info("pool %s has %d workers now", self._settings.name, self._settings.maximum)

    def _deliver(self, orders: Orders) -> None:
        for name, message in orders:
            self._send(name, message)

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
        hello = None
        try:
            end_when_silent(writer.get_extra_info("socket"), SILENCE)
            async with asyncio.timeout(GREETING):
                hello = await receive(reader, TO_KEEPER)
            if isinstance(hello, RunHello):
                if self._ledger.supersedes(hello):
                    self._send(hello.uid, Refused("another launcher of this run has replaced this one"))
                    self._writers.pop(hello.uid).close()
                    self._ledger.run_gone(hello.uid, self._now())
                orders = self._ledger.run_came(hello, self._now())
                await self._converse(hello.uid, reader, writer, orders, of_run=True)
            elif isinstance(hello, HostHello):
                orders = self._ledger.host_came(hello, self._now())
                await self._converse(hello.host, reader, writer, orders, of_run=False)
            else:
                raise InvalidDocument("somebody with a certificate of this pool connected, but said no hello")
        except InvalidDocument as error:
            self._limited_log.warning("a connection to the pool: %s", printable(error))
            if not isinstance(hello, RunHello):  # It may be a host, for which runs wait.
                self._refused = self._now(), printable(error)
            await self._refuse(writer, printable(error))
        except OSError as error:
            self._limited_log.warning("a connection to the pool: %s", printable(str(error) or "no hello in time"))
        finally:
            writer.transport.abort()
            self._serving.discard(task)

    async def _refuse(self, writer: asyncio.StreamWriter, reason: str) -> None:
        with contextlib.suppress(OSError):
            writer.write(FROM_KEEPER.write(Refused(reason)))
            async with asyncio.timeout(FAREWELL):
                await writer.drain()
                writer.close()
                await writer.wait_closed()

    async def _converse(
        self,
        name: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        orders: Orders,
        *,
        of_run: bool,
    ) -> None:
        self._writers[name] = writer
        self._deliver(orders)
        self._changed.set()
        try:
            while (message := await receive(reader, TO_KEEPER)) is not None and self._writers.get(name) is writer:
                if isinstance(message, Wishes) and of_run:
                    orders = self._ledger.run_wishes(name, message, self._now())
                elif isinstance(message, AgentEnded) and not of_run:
                    orders = self._ledger.agent_ended(name, message, self._now())
                elif isinstance(message, HostLeaves) and not of_run:
                    orders = self._ledger.host_leaves(name)
                else:
                    raise InvalidDocument(f"{type(message).__name__} is not for its sender to say")
                self._deliver(orders)
                self._changed.set()
        finally:
            if self._writers.get(name) is writer:  # Else another launcher of the run has replaced this one.
                del self._writers[name]
                if of_run:
                    self._ledger.run_gone(name, self._now())
                else:
                    self._ledger.host_gone(name)
                self._changed.set()
