"""The launcher's side: starts the processes of each world, and carries out what :mod:`~.worlds` decides."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
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
from elastic_runtime.engines.exits import ABORTED, describe
from elastic_runtime.engines.local_ranks import Local, by_host, local_ranks
from elastic_runtime.engines.tasks import SessionTasks
from elastic_runtime.engines.torch import messages
from elastic_runtime.engines.torch.exchanges import Exchanges
from elastic_runtime.engines.torch.key_values import KeyValues
from elastic_runtime.engines.torchrun import worlds
from elastic_runtime.engines.torchrun.environment import Place, environment_of
from elastic_runtime.engines.torchrun.worlds import Facts
from elastic_runtime.errors import InvalidDocument

FAILURE_WINDOW = 5.0
"""Seconds after a rank's failure in which the others fail too, and it is heard whether one of them was lost."""


SOON = 60.0
"""Seconds from the start of a world's processes in which a script fails that does not train in a world of this size."""


@dataclass(slots=True)
class _World:
    """The present one; before the first it has no members."""

    number: int = 0
    members: tuple[str, ...] = ()
    started: float = 0.0
    restarts: int = 0
    """How often processes of the script were started before, in the run."""
    begun: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    exits: dict[str, int] = field(default_factory=dict)
    gave_up: set[str] = field(default_factory=set)
    """Those that have failed and say that another one is gone."""
    finished: set[str] = field(default_factory=set)
    """Those that had ended with code 0 when all were asked to end."""
    store: KeyValues = field(default_factory=KeyValues)
    exchanges: Exchanges = field(default_factory=Exchanges)
    interrupted: bool = False
    killed: tuple[str, ...] = ()
    """Those that still ran when all that were left were ended."""
    waited: bool = False
    before: int = 0
    """Ranks of the last world that worked (:attr:`SessionFact.before`)."""


class TorchrunSession(Session):
    """Implements :class:`~elastic_runtime.engines.base.Session`.

    Args:
        runner: starts the ranks, and ends them.
        callbacks: hear of it.
        max_wait: seconds after a rank's failure before it is blamed: another may have been lost before.
    """

    def __init__(self, runner: RankRunner, callbacks: SessionCallbacks, max_wait: float = FAILURE_WINDOW) -> None:
        self._runner, self._callbacks, self._max_wait = runner, callbacks, max_wait
        self._state = SessionState.FORMING
        self._outcome: SessionOutcome | None = None
        self._closing = False
        self._listed: tuple[str, ...] = ()
        self._minimum = 1
        self._world = _World()
        self._running: set[str] = set()
        self._attempts: Counter[str] = Counter()
        """Processes that were started, by rank id."""
        self._tasks = SessionTasks()

    @property
    @override
    def fact(self) -> SessionFact:
        """Return the fact without holders: the state is in the script's own checkpoints."""
        begins = not (self._world.ended or self._world.interrupted)
        world, order = self._world, self.rank_of
        ends = [f"rank {order[each]} ({each}) ended with {describe(code)}" for each, code in world.exits.items()]
        killed = [f"rank {order[each]} ({each})" for each in world.killed if each not in world.exits]
        if killed and ends:
            ends.append(f"{' and '.join(killed)} still ran and {'was' if len(killed) == 1 else 'were'} killed")
        detail = (", ".join(ends) or "too few are left for another world") if self._outcome else ""
        return SessionFact(
            self._state,
            self._listed,
            self._outcome,
            detail,
            world=world.number,
            minimum=self._minimum,
            size=len(world.members),
            before=world.before,
            restarts=True,
            stage=Stage.CONNECTING if begins else Stage.LEAVING,
            awaited=tuple(each for each in world.members if begins and each not in world.begun),
        )

    @property
    @override
    def rank_of(self) -> dict[str, int]:
        return {rank_id: rank for rank, rank_id in enumerate(self._world.members)}

    @override
    def committed(self) -> None:
        """Do nothing: the committed state is in the script's own checkpoints."""

    @override
    def reform(self) -> None:
        """Do nothing: without :attr:`SessionFact.holders`, this is not called."""

    @override
    def break_up(self) -> None:
        if self._state is SessionState.SETTLED:
            self._interrupt()
            self._consider()

    @override
    def open(self, ranks: tuple[str, ...], minimum: int) -> None:
        self.list_ranks(ranks, minimum)

    @override
    def list_ranks(self, ranks: tuple[str, ...], minimum: int) -> None:
        self._listed, self._minimum = ranks, minimum
        self._consider()

    @override
    async def close(self, grace: float) -> None:
        self._closing = True
        self._runner.stop_ranks()
        await self._tasks.end(self._running, grace)
        if self._outcome is None:
            self._retire(self._world.members)

    @override
    def heard(self, rank_id: str, word: Mapping[str, Any]) -> None:
        """Raise InvalidDocument if the message is invalid."""
        said = messages.read_rank_word(word)
        if rank_id not in self._running:
            return
        if isinstance(said, messages.StoreAsk):
            for who, answer in self._world.store.ask(rank_id, said):
                self._runner.tell(who, messages.write_session_word(answer))
        elif isinstance(said, messages.Offer):
            for who, offered in self._world.exchanges.offer(rank_id, said, self.rank_of):
                self._runner.tell(who, messages.write_session_word(offered))
        elif isinstance(said, messages.Connected):
            self._begun(rank_id)
        else:
            raise InvalidDocument(f"{type(said).__name__} is not a word of a rank of this engine")

    def _begun(self, rank_id: str) -> None:
        world = self._world
        if rank_id in world.begun:
            return
        world.begun.add(rank_id)
        # Others may have ended before what this one said is here, or failed for their sake; nobody was killed.
        over = {each for each, code in world.exits.items() if code >= 0 or code == ABORTED}
        if world.begun.issuperset(world.members) and world.ended <= over:
            self._callbacks.on_world(list(world.members))
        self._consider()

    # Processes

    @staticmethod
    def environment(place: Place) -> dict[str, str]:
        """Return the environment of one process of the script."""
        return environment_of(place)

    async def _run(self, rank_id: str, rank: int, local: Local, world: _World) -> None:
        place = Place(rank_id, rank, len(world.members), local, world.restarts, self._runner.interface(rank_id) or "")
        attempt = self._attempts[rank_id]
        self._attempts[rank_id] += 1
        code = await self._runner.run_rank(rank_id, attempt, {messages.NAME: rank_id, **self.environment(place)})
        self._running.discard(rank_id)
        world.ended.add(rank_id)
        world.store.forget(rank_id)
        by_itself = self._runner.ended_by_itself(rank_id)
        if world.interrupted and by_itself and code == 0:
            world.finished.add(rank_id)
        if self._closing or world.interrupted or (world.killed and not by_itself):
            self._callbacks.on_exit(rank_id, code, True)
        else:
            self._ended_by_itself(rank_id, code)
        self._consider()

    def _ended_by_itself(self, rank_id: str, code: int) -> None:
        first = not any(self._world.exits.values())
        self._world.exits[rank_id] = code
        if code > 0 and self._callbacks.gave_up_peer(rank_id):
            self._world.gave_up.add(rank_id)
        if code <= 0 and code != ABORTED:
            self._callbacks.on_exit(rank_id, code, code == 0)
        elif first:  # Whether it is to blame itself, turns out once all have ended.
            self._tasks.begin(self._wait(self._world))

    async def _wait(self, world: _World) -> None:
        await asyncio.sleep(self._max_wait)
        world.waited = True
        self._consider()

    # Worlds

    def _consider(self) -> None:
        """Whatever has happened: have it decided, and do it."""
        if self._closing or self._outcome is not None:
            return
        world = self._world
        decision = worlds.decide(self._facts())
        self._state, self._outcome = decision.state, decision.outcome
        if decision.interrupt:
            self._interrupt()
        if decision.kill and not world.killed:
            world.killed = tuple(each for each in world.members if each not in world.ended)
            self._runner.kill_ranks(stacks=decision.stacks)
        if decision.form:
            self._form(decision.form)
        elif self._outcome is not None:
            self._end(self._outcome)
        self._callbacks.on_change()

    def _interrupt(self) -> None:
        self._world.interrupted = True
        self._runner.interrupt_ranks()

    def _facts(self) -> Facts:
        world, now = self._world, asyncio.get_running_loop().time()
        if not world.interrupted:
            world.before = self._callbacks.worked_before(len(world.members))
        return Facts(
            self._listed,
            frozenset(each for each in self._listed if self._runner.interface(each) is not None),
            self._minimum,
            world.members,
            frozenset(world.begun),
            frozenset(world.ended),
            world.exits,
            frozenset(world.gave_up),
            frozenset(world.finished),
            interrupted=world.interrupted,
            waited=world.waited,
            before=world.before,
            soon=now - world.started <= SOON,
        )

    def _form(self, chosen: tuple[str, ...]) -> None:
        self._retire(each for each in self._world.members if each not in chosen)
        # As with torchrun, ranks of one host follow each other: meshes over hosts are made of that.
        chosen, number = by_host(chosen, self._runner.host), self._world.number + 1
        restarts = self._callbacks.on_start(len(chosen))
        self._world = world = _World(number, chosen, asyncio.get_running_loop().time(), restarts)
        local = local_ranks(chosen, self._runner.host)
        for rank, rank_id in enumerate(chosen):
            self._running.add(rank_id)
            self._tasks.begin(self._run(rank_id, rank, local[rank_id], world))

    def _end(self, outcome: SessionOutcome) -> None:
        blamed = worlds.to_blame(self._world.exits, self._world.gave_up, outcome)
        for rank_id, code in self._world.exits.items():
            if code > 0 or code == ABORTED:
                self._callbacks.on_exit(rank_id, code, rank_id not in blamed)
        self._retire(self._world.members)

    def _retire(self, rank_ids: Iterable[str]) -> None:
        for rank_id in rank_ids:
            self._callbacks.on_over(rank_id)
