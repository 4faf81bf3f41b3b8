"""Plays agents, each with one rank of the engine ``torch``: real connections, real words, and nothing that trains."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elastic_runtime.agent.agent import dial
from elastic_runtime.engines.torch.messages import Connected, RankWord, ReadyForWorld, Synced, write_rank_word
from elastic_runtime.protocol.rank_link import EngineWord, Progress, RankMessage, encode_rank_message
from elastic_runtime.protocol.wire import (
    AgentMessage,
    Heartbeat,
    Hello,
    RankExited,
    RankSaid,
    RankStarted,
    Ready,
    encode,
)

BEAT = 1.0
"""Seconds from one heartbeat to the next."""
PROGRESS = 0.25
"""Seconds from one word of rank 0's progress to the next."""
LOOK = 0.01
"""Seconds between two looks at what has come about."""


@dataclass(slots=True, eq=False)
class Agent:
    """One agent, and its rank."""

    number: int
    writer: asyncio.StreamWriter | None = None
    rank_id: str = ""
    world: int = 0
    rank: int = -1
    size: int = 0
    welcomed_at: float = 0.0
    entered_at: float = 0.0
    told_at: float = 0.0
    """When it was told last that another world is wanted."""

    def send(self, message: AgentMessage) -> None:
        """Queue it, unless the connection is gone."""
        if self.writer is not None and not self.writer.is_closing():
            self.writer.write(encode(message))

    def say(self, word: RankWord) -> None:
        """To the session."""
        self.tell(EngineWord(write_rank_word(word)))

    def tell(self, message: RankMessage) -> None:
        """Over the rank's link."""
        self.send(RankSaid(self.rank_id, json.loads(encode_rank_message(message))))

    def hear(self, message: Mapping[str, Any]) -> None:
        """Do what an agent and its rank do."""
        match message["type"]:
            case "welcome":
                self.welcomed_at = time.monotonic()
                self.send(Ready(warm=True))
            case "start_rank":
                self.rank_id, self.world = message["rank_id"], 0
                self.send(RankStarted(self.rank_id, 1000 + self.number))
                self.say(ReadyForWorld())
            case "stop_rank":
                self.send(RankExited(message["rank_id"], -15))
            case "tell_rank" if message["rank_id"] == self.rank_id:
                self._hear_session(message["word"])

    def _hear_session(self, word: Mapping[str, Any]) -> None:
        match word["type"]:
            case "enter_world":
                self.entered_at = time.monotonic()
                self.world, self.rank, self.size = word["world"], word["rank"], word["size"]
                self.say(Connected(self.world))
                self.say(Synced(self.world))
            case "another_wanted":
                self.told_at = time.monotonic()
                self.say(ReadyForWorld())
            case "world_broken":
                self.say(ReadyForWorld())
            case "left_out":
                self.rank, self.size = -1, 0
                self.send(RankExited(self.rank_id, 0))


@dataclass(slots=True)
class Agents:
    """All of them; :meth:`play` until cancelled."""

    tls: Path
    port: int
    all: list[Agent] = field(default_factory=list)

    @classmethod
    def of(cls, count: int, tls: Path, port: int) -> Agents:
        """So many, none of which is connected."""
        return cls(tls, port, [Agent(number) for number in range(count)])

    async def play(self) -> None:
        """Connect, and again whenever a connection ends; beat; tell progress."""
        async with asyncio.TaskGroup() as tasks:
            for agent in self.all:
                tasks.create_task(self._connected(agent))
            tasks.create_task(self._every(BEAT, lambda agent: agent.send(Heartbeat(100.0, 10**9)), self.all))
            tasks.create_task(self._progress())

    async def until(self, holds: Callable[[Agent], bool], what: str, max_wait: float, but: int = 0) -> float:
        """Await that it holds for all, but so many. Returns seconds. Raises AssertionError when it takes too long."""
        begun = time.monotonic()
        while (missing := sum(not holds(agent) for agent in self.all)) > but:
            if time.monotonic() - begun > max_wait:
                raise AssertionError(f"{missing} of {len(self.all)} agents are not {what} after {max_wait:.0f} s")
            await asyncio.sleep(LOOK)
        return time.monotonic() - begun

    async def _connected(self, agent: Agent) -> None:
        while True:
            reader, agent.writer = await dial(("127.0.0.1", self.port), self.tls, None)
            try:
                agent.send(Hello(f"worker-{agent.number}", f"node-{agent.number}", 7, 1, "lo"))
                with contextlib.suppress(ConnectionError):
                    while line := await reader.readline():
                        agent.hear(json.loads(line))
            finally:
                agent.writer.transport.abort()
                agent.rank_id, agent.rank, agent.size, agent.welcomed_at = "", -1, 0, 0.0

    @staticmethod
    async def _every(pause: float, act: Callable[[Agent], None], agents: Iterable[Agent]) -> None:
        """In slices, as agents of many machines do not beat at once."""
        everybody, slices = list(agents), 20
        while True:
            for begin in range(slices):
                for agent in everybody[begin::slices]:
                    act(agent)
                await asyncio.sleep(pause / slices)

    async def _progress(self) -> None:
        step = 0
        while True:
            await asyncio.sleep(PROGRESS)
            step += 1
            for agent in self.all:
                if agent.rank == 0 and agent.world:
                    agent.tell(Progress(step))
