"""One life of Horovod's ElasticDriver: its threads on one side, the launcher's event loop on the other.

The ranks of a world wait for each other: at the roll call before ``hvd.init()``, and inside. So a rank is listed only
when it can start at once, and a newcomer that dies on its way to the roll call is started again under the same name:
where it was. When a rank is lost for good, the launcher hears that the world cannot be completed any more, and has it
formed anew (:meth:`HorovodSession.reform`), or the session closed if nobody who holds the state is left.

Between two worlds they wait for each other at the driver's barrier. From the first that has come, or has failed, the
world is over, and :attr:`SessionFact.awaited` names those that are missing at the barrier.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from typing_extensions import override

from elastic_runtime.engines.base import (
    RankRunner,
    Session,
    SessionCallbacks,
    SessionFact,
    SessionOutcome,
    SessionState,
    Stage,
)
from elastic_runtime.engines.exits import LOST, describe, outcome_of
from elastic_runtime.engines.horovod.driver import (
    AdaptedDriver,
    ElasticHandler,
    PushedHosts,
    SessionEnd,
    rank_environment,
)
from elastic_runtime.engines.horovod.rendezvous_server import RendezvousServer
from elastic_runtime.engines.tasks import ANSWER_TIME
from elastic_runtime.errors import InvalidDocument

log = logging.getLogger(__name__)

JOIN_ATTEMPTS = 4
"""How often a rank is started until it has come to a complete roll call."""


class HorovodSession(Session):
    """Implements :class:`~elastic_runtime.engines.base.Session`; see the module.

    Args:
        runner: starts the ranks.
        address: on which the rendezvous server listens, and the ranks reach it.
        port: of the rendezvous server; 0 for any.
        callbacks: hear of it.
    """

    def __init__(self, runner: RankRunner, address: str, port: int, callbacks: SessionCallbacks) -> None:
        self._runner, self._address, self._callbacks = runner, address, callbacks
        self._loop = asyncio.get_running_loop()
        self._hosts = PushedHosts()
        self._rendezvous = RendezvousServer(address, port)
        self._port = 0
        self._driver: AdaptedDriver
        self._state = SessionState.FORMING
        self._listed: tuple[str, ...] = ()
        self._minimum = 1
        self._members: list[str] = []
        self._joining: set[str] = set()
        self._joined: set[str] = set()
        self._complete: tuple[str, ...] = ()
        """Members of the last world that was complete, by rank."""
        self._proven: frozenset[str] = frozenset()
        """Ranks of the last world that is known to have trained: whoever was in it has the state."""
        self._exits: dict[str, int] = {}
        self._over: set[str] = set()
        self._blameless: set[str] = set()
        """Ranks that we have stopped because their world was given up, for no fault of theirs."""
        self._elastic: set[str] = set()
        """Ranks that have begun with ``hvd.elastic.run``: others have no state that outlives their world."""
        self._stage = Stage.CONNECTING
        self._back: set[str] = set()
        """Members that have come to the barrier, where they wait for the next world."""
        self._late_stopped = False
        """At this stage."""
        self._end: SessionEnd | None = None
        self._worlds = 0
        self._running = 0
        self._rank_over = asyncio.Event()

    @property
    @override
    def fact(self) -> SessionFact:
        outcome = self._outcome() if self._end else None
        is_forming = self._state is SessionState.FORMING
        return SessionFact(
            self._state,
            self._listed,
            outcome,
            self._detail() if outcome else self._ends() if is_forming else "",
            world=self._worlds,
            minimum=self._minimum,
            holders=self._holders(),
            missing=self._missing(),
            given_up=self._late_stopped,
            stage=self._stage,
            awaited=(awaited := self._awaited() if is_forming else ()),
            arrived=tuple(each for each in self._members if is_forming and each not in {*awaited, *self._over}),
        )

    @property
    @override
    def rank_of(self) -> dict[str, int]:
        return {rank_id: rank for rank, rank_id in enumerate(self._members)}

    @override
    def heard(self, rank_id: str, word: Mapping[str, Any]) -> None:
        raise InvalidDocument("Horovod's ranks say nothing to it over their agents")

    @override
    def committed(self) -> None:
        # The word of it may come after the rank itself has come to the barrier.
        if self._state is SessionState.SETTLED or self._stage is Stage.RETURNING:
            self._proven = frozenset(self._complete)

    @override
    def open(self, ranks: tuple[str, ...], minimum: int) -> None:
        self._listed, self._minimum = ranks, minimum
        self._driver = AdaptedDriver(
            self._rendezvous,
            self._hosts,
            minimum,
            on_assigned=lambda members: self._call(self._assigned, members),
            on_ready=lambda rank_id: self._call(self._came_back, rank_id),
            on_waiting=lambda: self._call(self._set, SessionState.WAITING),
            on_end=lambda how: self._call(self._ended, how),
        )
        self._port = self._rendezvous.start(
            ElasticHandler(
                self._driver,
                lambda host: self._call(self._rank_joined, host),
                lambda host: self._call(self._elastic.add, host),
            )
        )
        self._driver.push(ranks, minimum)
        threading.Thread(target=self._drive, args=(minimum,), name="elastic-driver", daemon=True).start()

    @override
    def list_ranks(self, ranks: tuple[str, ...], minimum: int) -> None:
        self._listed, self._minimum = ranks, minimum
        self._driver.push(ranks, minimum)

    @override
    def reform(self) -> None:
        if self._stage is Stage.CONNECTING:
            blameless = bool(self._missing())
            late = self._give_up().difference(self._over)
            if blameless or late.issuperset(self._holders() or ()):
                late -= self._joined  # They have the state, and come back by themselves.
        else:
            blameless, late = False, frozenset(self._awaited())
            self._late_stopped = True
        for rank_id in late:
            if blameless:
                self._blameless.add(rank_id)
            else:
                log.warning("rank %s has not come to where the others wait for it: it is stopped", rank_id)
            self._runner.stop_rank(rank_id, stacks=not blameless)
        self._callbacks.on_change()

    def _give_up(self) -> frozenset[str]:
        """Have those who connect come back. Returns who has not begun to."""
        self._stage = Stage.RETREATING
        return self._driver.give_up_world()

    @override
    async def close(self, grace: float) -> None:
        is_over = self._state is SessionState.FORMING and self._stage is not Stage.CONNECTING
        self._end = self._end or SessionEnd.STOPPED  # from here on no rank is started again
        self._runner.stop_ranks(stacks=self._awaited() if is_over else ())
        await asyncio.to_thread(self._driver.end, SessionEnd.STOPPED)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace + ANSWER_TIME):
                while self._running:
                    self._rank_over.clear()
                    await self._rank_over.wait()

    def _drive(self, minimum: int) -> None:
        try:
            self._driver.start(minimum, self._create_worker)
        except RuntimeError as error:  # ended while it waited for hosts
            log.debug("driver: %s", error)

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        """From a driver's thread into the event loop; into nothing when that has ended."""
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            log.debug("the event loop has ended before %s", function)

    def _create_worker(self, slot: Any, _events: list[threading.Event]) -> tuple[int, float]:
        """Horovod's hook: blocks until the rank has ended, in a thread of its own. Must not raise."""
        try:
            return asyncio.run_coroutine_threadsafe(self._run_until_over(slot), self._loop).result(), time.time()
        except RuntimeError:  # the event loop has ended
            return LOST, time.time()

    async def _run_until_over(self, slot: Any) -> int:
        self._running += 1
        try:
            return await self._run_until_joined(slot)
        finally:
            self._running -= 1
            self._over.add(slot.hostname)
            if slot.hostname in self._members and self._exits.get(slot.hostname):
                self._world_is_over()
            self._rank_over.set()
            self._callbacks.on_over(slot.hostname)

    async def _run_until_joined(self, slot: Any) -> int:
        rank_id, first_world, code = slot.hostname, self._worlds <= 1, LOST
        for attempt in range(JOIN_ATTEMPTS):
            interface = self._runner.interface(rank_id)
            if self._end or interface is None:
                break
            token = self._rendezvous.tokens.of(rank_id)
            environment = rank_environment(self._address, self._port, interface, slot, token)
            code = await self._runner.run_rank(rank_id, attempt, environment)
            expected = self._end is not None or rank_id not in self._members or code == 0
            self._callbacks.on_exit(rank_id, code, expected or rank_id in self._blameless)
            if self._end:  # By us, which says nothing about the cause.
                break
            self._exits[rank_id] = code
            self._driver.roll_call.has_left(rank_id)
            if code == 0 and rank_id in self._members and self._state is SessionState.SETTLED:
                self._set(SessionState.FINISHING)
            given_up = self._stage is not Stage.CONNECTING
            if code == 0 or rank_id in self._joined or given_up or self._driver.roll_call.complete:
                break
            if first_world and code > 0:
                # No state to save yet, and the others would wait for it: fail at once, and say why.
                await asyncio.to_thread(self._driver.end, SessionEnd.ALL_FAILED)
                break
        return code

    def _assigned(self, members: list[tuple[str, int]]) -> None:
        self._members = [rank_id for rank_id, _ in members]
        self._joining = set(self._members)
        self._worlds += 1
        self._stage, self._late_stopped = Stage.CONNECTING, False
        self._back.clear()
        self._set(SessionState.FORMING)

    def _came_back(self, rank_id: str) -> None:
        """To the barrier, out of a world or on the way into it."""
        self._back.add(rank_id)
        if self._state is SessionState.FORMING and self._stage is Stage.CONNECTING:
            self._give_up()  # It could not connect: those who wait for it inside wait in vain.
        if self._state is SessionState.FINISHING:
            self._set(SessionState.SETTLED)  # Those who have ended have done so too early.
        self._world_is_over()
        self._callbacks.on_change()

    def _world_is_over(self) -> None:
        """One of its ranks cannot go on in it; so its others cannot either, once they communicate."""
        if self._state is SessionState.SETTLED:
            self._stage = Stage.RETURNING
            self._set(SessionState.FORMING)

    def _rank_joined(self, rank_id: str) -> None:
        self._joining.discard(rank_id)
        self._joined.add(rank_id)
        if not self._joining and self._state is SessionState.FORMING and self._stage is Stage.CONNECTING:
            self._complete = tuple(self._members)
            self._callbacks.on_world(list(self._members))
            self._set(SessionState.SETTLED)

    def _holders(self) -> tuple[str, ...] | None:
        if self._elastic.isdisjoint(self._complete):
            return None
        running = [rank_id for rank_id in self._complete if rank_id in self._members and rank_id not in self._over]
        if (
            self._state is SessionState.FORMING
            and self._stage is Stage.RETURNING
            and self._over.issuperset(self._members)
        ):
            return None  # The driver is about to say how all of them have ended.
        # A newcomer to a world that broke before it trained may have heard nothing of the state yet.
        return tuple([rank_id for rank_id in running if rank_id in self._proven] or running)

    def _awaited(self) -> tuple[str, ...]:
        """At the barrier, at the roll call, or inside ``hvd.init()``, where all have come to that."""
        if not self._members:
            return ()
        if self._stage is Stage.CONNECTING:
            awaited = self._driver.roll_call.absent or self._joining
        else:
            awaited = set(self._members) - self._back
        return tuple(rank_id for rank_id in self._members if rank_id in awaited and rank_id not in self._over)

    def _missing(self) -> tuple[str, ...]:
        if self._state is not SessionState.FORMING or self._stage is not Stage.CONNECTING:
            return ()
        over = [rank_id for rank_id in self._members if rank_id in self._over]
        # Before any training one that ends with 0 may be followed by all others: it had nothing to do.
        return tuple(rank_id for rank_id in over if self._complete or self._exits.get(rank_id) != 0)

    def _ended(self, how: SessionEnd) -> None:
        self._end = how
        self._runner.stop_ranks()
        self._set(SessionState.ENDED)

    def _set(self, state: SessionState) -> None:
        if self._state is not SessionState.ENDED:
            self._state = state
        self._callbacks.on_change()

    def _outcome(self) -> SessionOutcome:
        if self._end is SessionEnd.SUCCEEDED:
            return SessionOutcome.SUCCEEDED
        if self._end is SessionEnd.EARLY_EXIT:
            return SessionOutcome.EARLY_EXIT
        return outcome_of([self._exits[rank_id] for rank_id in self._members if rank_id in self._exits])

    def _detail(self) -> str:
        return self._ends() or str(self._end)

    def _ends(self) -> str:
        ended = [
            f"rank {rank} ({rank_id}) ended with {describe(self._exits[rank_id])}"
            for rank, rank_id in enumerate(self._members)
            if rank_id in self._exits
        ]
        return ", ".join(ended)
