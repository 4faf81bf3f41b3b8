"""The hub: one connection to each rank, over which it forms worlds and has their ranks hear each other.

JSON, one line a message. A rank says ``join`` once, then ``ready`` when it wants to be in the next world, and in it
``gather`` as often as all others. Each ``ready`` and ``gather`` has one answer: ``rank`` and ``size``, with a rank of
-1 where it is left out; ``values`` and ``changes``; or ``broken``, when a rank of the world is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elastic_runtime.engines.base import RankRunner, SessionCallbacks, SessionFact, SessionOutcome, SessionState
from elastic_runtime.engines.exits import describe, outcome_of
from elastic_runtime.engines.tasks import SessionTasks
from elastic_runtime.errors import InvalidDocument
from hub_engine.rank import ADDRESS, NAME, TOKEN

LONGEST = 1 << 24
"""Bytes of a message."""


@dataclass(eq=False)
class _Rank:
    """One that runs, or is about to."""

    stream: asyncio.StreamWriter | None = None
    """Once it has joined."""
    ready: bool = False
    """For the next world."""
    gives: tuple[Any] | None = None
    """To the gather under way."""

    def tell(self, **message: Any) -> None:
        self.ready, self.gives = False, None
        if self.stream is not None:
            self.stream.write(json.dumps(message).encode() + b"\n")


class HubSession:
    """Implements :class:`~elastic_runtime.engines.base.Session`."""

    def __init__(self, runner: RankRunner, address: str, port: int, callbacks: SessionCallbacks) -> None:
        self._runner, self._callbacks = runner, callbacks
        self._address = address, port
        self._listening: socket.socket
        self._token = secrets.token_hex(16)
        self._state = SessionState.FORMING
        self._outcome: SessionOutcome | None = None
        self._closing = False
        self._listed: tuple[str, ...] = ()
        self._minimum = 1
        self._ranks: dict[str, _Rank] = {}
        self._worlds = 0
        self._members: list[str] = []
        self._exits: dict[str, int] = {}
        """Of those that were members of the present world, or were to be of the first."""
        self._holders: set[str] = set()
        """Of the state; a newcomer is not one before it has heard of it."""
        self._tasks = SessionTasks()

    @property
    def fact(self) -> SessionFact:
        ended = ", ".join(f"{rank_id} ended with {describe(code)}" for rank_id, code in self._exits.items())
        holders = tuple(each for each in self._members if each in self._holders and each in self._ranks)
        return SessionFact(
            self._state,
            self._listed,
            self._outcome,
            ended if self._outcome else "",
            world=self._worlds,
            minimum=self._minimum,
            holders=holders if self._worlds else None,
        )

    @property
    def rank_of(self) -> dict[str, int]:
        return {rank_id: rank for rank, rank_id in enumerate(self._members)}

    def heard(self, rank_id: str, word: Mapping[str, Any]) -> None:
        raise InvalidDocument("ranks of this engine talk to its hub")

    def committed(self) -> None:
        """Who has the state is known without being told."""

    def reform(self) -> None:
        """There is no need: a world is made of those who are ready, and is complete at once."""

    def break_up(self) -> None:
        """Whoever waits for others need not."""
        self._break_up()

    def open(self, ranks: tuple[str, ...], minimum: int) -> None:
        self._listening = socket.create_server(self._address)
        self._tasks.begin(self._listen())
        self.list_ranks(ranks, minimum)

    def list_ranks(self, ranks: tuple[str, ...], minimum: int) -> None:
        self._listed, self._minimum = ranks, minimum
        for rank_id in ranks:
            if rank_id not in self._ranks:
                self._ranks[rank_id] = _Rank()
                self._tasks.begin(self._run(rank_id))
        self._consider()

    async def close(self, grace: float) -> None:
        self._closing = True
        self._runner.stop_ranks()
        await self._tasks.end(self._ranks, grace)

    # Processes

    async def _run(self, rank_id: str) -> None:
        host, port = self._listening.getsockname()[:2]
        environment = {ADDRESS: f"{host}:{port}", NAME: rank_id, TOKEN: self._token}
        code = await self._runner.run_rank(rank_id, 0, environment)
        del self._ranks[rank_id]
        left_out = rank_id not in self._listed and rank_id not in self._members
        self._callbacks.on_exit(rank_id, code, self._over or code == 0 or left_out)
        if not self._over and (rank_id in self._members or not self._members):
            self._exits[rank_id] = code
            if code != 0:
                self._break_up()
        self._consider()
        self._callbacks.on_over(rank_id)

    @property
    def _over(self) -> bool:
        return self._closing or self._outcome is not None

    # Worlds

    def _break_up(self) -> None:
        """A member is gone: whoever waits for it need not."""
        for rank_id in self._members:
            if (rank := self._ranks.get(rank_id)) and rank.gives:
                rank.tell(broken=True)

    def _consider(self) -> None:
        """Whatever has happened: end, or form the next world, or settle a gather, where it is time to."""
        if self._over:
            return
        self._leave_out()
        here = {rank_id: self._ranks[rank_id] for rank_id in self._members if rank_id in self._ranks}
        codes = self._exits.values()
        if self._members and not here:
            self._end(outcome_of(codes) if any(codes) else SessionOutcome.SUCCEEDED)
        elif codes and not self._members:
            self._end(outcome_of(codes) if all(codes) else SessionOutcome.EARLY_EXIT)
        elif 0 in codes:
            waiting = any(rank.ready or rank.gives for rank in here.values())
            self._end(SessionOutcome.EARLY_EXIT) if waiting else self._set(SessionState.FINISHING)
        elif all(rank.ready for rank in here.values()):
            self._form()
        elif len(here) == len(self._members) and all(rank.gives for rank in here.values()):
            values, changes = [given for rank in here.values() for given in rank.gives or ()], self._wants_another()
            self._holders = set(here)  # With a world's first gather all have what rank 0 had.
            for rank in here.values():
                rank.tell(values=values, changes=changes)

    def _next_members(self) -> list[str]:
        """Those who have the state first, in the order that they had; at the end who comes."""
        able = [each for each in self._listed if each in self._ranks]
        able = [each for each in able if each in self._members or self._ranks[each].ready]
        before = self.rank_of
        return sorted(able, key=lambda each: (each not in self._holders, before.get(each, len(before))))

    def _wants_another(self) -> bool:
        chosen = self._next_members()
        return chosen != self._members and len(chosen) >= self._minimum and not self._holders.isdisjoint(chosen)

    def _form(self) -> None:
        """All that are left of the world before are ready; nobody, at the first one."""
        chosen = self._next_members()
        enough = len(chosen) >= (self._minimum if self._members else len(self._listed))
        if self._members and self._holders.isdisjoint(chosen if enough else self._ranks):
            self._end(SessionOutcome.LOST)
        elif not enough:
            self._set(SessionState.WAITING if self._members else SessionState.FORMING)
        else:
            self._holders &= set(chosen)
            self._members = chosen
            self._worlds += 1
            self._exits.clear()
            for number, rank_id in enumerate(chosen):
                self._ranks[rank_id].tell(rank=number, size=len(chosen))
            self._callbacks.on_world(list(chosen))
            self._set(SessionState.SETTLED)
            self._leave_out()

    def _leave_out(self) -> None:
        for rank_id, rank in self._ranks.items():
            if rank.ready and rank_id not in (*self._members, *self._listed):
                rank.tell(rank=-1, size=0)

    def _end(self, outcome: SessionOutcome) -> None:
        self._outcome = outcome
        self._set(SessionState.ENDED)
        self._runner.stop_ranks()

    def _set(self, state: SessionState) -> None:
        self._state = state
        self._callbacks.on_change()

    # Connections

    async def _listen(self) -> None:
        server = await asyncio.start_server(self._serve, sock=self._listening, limit=LONGEST)
        async with server:
            await server.serve_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError, ValueError, KeyError):
            hello = json.loads(await reader.readline())
            rank = self._ranks.get(hello["join"]) if hello["token"] == self._token else None
            if rank is None or rank.stream is not None:
                return
            rank.stream = writer
            while line := await reader.readline():
                self._hear(rank, json.loads(line))

    def _hear(self, rank: _Rank, message: dict[str, Any]) -> None:
        if "ready" in message:
            rank.ready = True
        elif set(self._members) <= self._ranks.keys():
            rank.gives = (message["gather"],)
        else:
            rank.tell(broken=True)
        self._consider()
