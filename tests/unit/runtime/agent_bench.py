"""A launcher's server for agents, listening, that notes what it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from elastic_runtime.launcher.agents import AgentConnection, AgentServer
from elastic_runtime.protocol.wire import AgentMessage
from elastic_runtime.run.spec import RunSpec, Timing

SOON = 20.0
T = TypeVar("T")


def spec(*command: str, **timing: float) -> RunSpec:
    return RunSpec("run", "uid", command or ("true",), warm=False, timing=Timing(**timing))


@dataclass(eq=False)
class Desk:
    """What the server told."""

    arrivals: list[AgentConnection] = field(default_factory=list)
    messages: list[AgentMessage] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    port: int = 0

    def came(self, connection: AgentConnection) -> None:
        self.arrivals.append(connection)
        self.changed.set()

    def said(self, _connection: AgentConnection, message: AgentMessage) -> None:
        self.messages.append(message)
        self.changed.set()

    def gone(self, connection: AgentConnection) -> None:
        self.ends.append(connection.hello.worker)
        self.changed.set()

    def of(self, kind: type[T]) -> list[T]:
        return [each for each in self.messages if isinstance(each, kind)]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(SOON):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def listening(
    tls: Path, run: RunSpec, used: Sequence[str] = (), port: int = 0, **more: Any
) -> AsyncIterator[Desk]:
    desk = Desk()
    server = AgentServer(run, desk.came, desk.said, desk.gone, used, **more)
    desk.port = await server.start(tls, "127.0.0.1", port)
    try:
        yield desk
    finally:
        await server.close()
        await handshakes()


async def handshakes() -> None:
    """Wait for those that asyncio's server has not finished, which it does not do itself when it is closed."""
    own = [task for task in asyncio.all_tasks() if "_accept_connection2" in repr(task.get_coro())]
    if own:
        await asyncio.wait(own, timeout=SOON)
