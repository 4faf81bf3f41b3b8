"""The launcher's side: starts the ranks, hears them, and carries out what :mod:`~.worlds` decides."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
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
from elastic_runtime.engines.exits import LOST, describe
from elastic_runtime.engines.local_ranks import local_ranks
from elastic_runtime.engines.tasks import SessionTasks
from elastic_runtime.engines.torch import messages, worlds
from elastic_runtime.engines.torch.exchanges import Exchanges
from elastic_runtime.engines.torch.key_values import KeyValues
from elastic_runtime.engines.torch.messages import AgreeAt, Prepare, Prepared, SessionWord, StoreAsk
from elastic_runtime.engines.torch.worlds import Decision, Facts, RankFact
from elastic_runtime.errors import InvalidDocument
from elastic_runtime.printable import printable


@dataclass(slots=True)
class Agreeing:
    """At which commit the ranks of a world agree next: settled from their answers, without any I/O. One at a time.

    Whoever wants one while another is prepared needs no other: what it has heard, it says at that one. See
    :mod:`~elastic_runtime.engines.torch.messages`.
    """

    world: int
    serial: int = 0
    _prepares: bool = False
    _begun: dict[str, int] = field(default_factory=dict)

    def want(self) -> Prepare | None:
        """Return the message that all ranks are to get. None: they have it."""
        if self._prepares:
            return None
        self._prepares, self._begun = True, {}
        self.serial += 1
        return Prepare(self.world, self.serial)

    def prepared(self, rank_id: str, said: Prepared, members: Iterable[str]) -> AgreeAt | None:
        """A rank has answered.

        Returns:
            What all ranks are to be told; None: others have not answered yet.
        """
        if not self._prepares or said.serial != self.serial:
            return None
        self._begun[rank_id] = said.begun
        if not self._begun.keys() >= set(members):
            return None
        self._prepares = False
        return AgreeAt(self.world, self.serial, max(self._begun.values()) + 1)


NEWCOMERS = 5.0
"""Seconds for which members that are to leave stay while newcomers start, at most: a notice may be of 30 s."""
START_ATTEMPTS = 4
"""How often a rank of the first world is started, if it is killed before that world forms."""
PARTS_LOST = "ranks ended together with those that kept copies of their parts"
log = logging.getLogger(__name__)


@dataclass(slots=True)
class _World:
    """The present one; before the first it has no members."""

    number: int = 0
    members: tuple[str, ...] = ()
    rank_of: Mapping[str, int] = field(default_factory=dict)
    begun: set[str] = field(default_factory=set)
    """Members that were connected to all others, whatever became of them since."""
    exits: dict[str, int] = field(default_factory=dict)
    store: KeyValues = field(default_factory=KeyValues)
    exchanges: Exchanges = field(default_factory=Exchanges)
    agreeing: Agreeing = field(default_factory=lambda: Agreeing(0))
    broken: bool = False
    state_lost: bool = False
    static: bool = False
    """Its members train without a state, as far as is known."""
    given_up: bool = False
    finished: bool = False
    again: bool = False
    """A rank trains once more after that."""
    leaving: tuple[int, ...] | None = None
    """Ranks of whom its members were told last that they will not be in the next; None: of no other world yet."""
    told_broken: bool = False
    late: set[str] = field(default_factory=set)
    """Members that were stopped because they did not come in time."""


class TorchSession(Session):
    """Implements :class:`~elastic_runtime.engines.base.Session`.

    Args:
        runner: starts the ranks, and brings them what they are told.
        callbacks: hear of it.
    """

    may_be_alone = False
    """See :attr:`.worlds.Facts.may_be_alone`."""
    prepares = True
    """See :attr:`.SessionFact.prepares`."""

    def __init__(self, runner: RankRunner, callbacks: SessionCallbacks) -> None:
        self._runner, self._callbacks = runner, callbacks
        self._state = SessionState.FORMING
        self._outcome: SessionOutcome | None = None
        self._closing = False
        self._listed: tuple[str, ...] = ()
        self._minimum = 1
        self._running: dict[str, RankFact] = {}
        self._world = _World()
        self._had_state = False
        self._changes = self._in_vain = 0
        self._tasks = SessionTasks()
        self._hurry: asyncio.TimerHandle | None = None
        """Ends the wait of members that are to leave for newcomers to be ready."""
        self._hurries = False

    @property
    @override
    def fact(self) -> SessionFact:
        facts, world = self._facts(), self._world
        order, waits = self.rank_of, not worlds.absent(facts, told_broken=True)
        # One that was connected to all has ended, and its agent has brought all that it had to say.
        was_connected = not world.begun.issubset(self._running)
        ends = [f"rank {order.get(each, 0)} ({each}) ended with {describe(code)}" for each, code in world.exits.items()]
        return SessionFact(
            self._state,
            self._listed,
            self._outcome,
            PARTS_LOST if world.state_lost else ", ".join(ends),
            world=world.number,
            holders=facts.holders if self._had_state else None,
            unheard=facts.unheard if was_connected else (),
            minimum=self._minimum,
            given_up=world.given_up and not waits,
            waiting=tuple(each for each in facts.holders if facts.running[each].ready),
            hung=facts.all_hung,
            static=world.members if world.static and not self._had_state else (),
            stage=Stage.CONNECTING if self._is_whole() or waits else Stage.RETURNING,
            starting=self._starting(facts),
            done=self._state is SessionState.FINISHING and worlds.is_done(facts),
            again=world.again,
            prepares=self.prepares,
        )

    def _starting(self, facts: Facts) -> tuple[str, ...]:
        """Newcomers to a world that was complete before, the first one first."""
        found = [each for each in worlds.starting(facts) if facts.members and each not in self._world.late]
        return tuple(sorted(found, key=lambda each: facts.running[each].started))

    @property
    @override
    def rank_of(self) -> Mapping[str, int]:
        return self._world.rank_of

    @override
    def committed(self) -> None:
        """Reset the count of worlds that broke in vain; the ranks report themselves which of them have the state."""
        self._in_vain = 0

    @override
    def open(self, ranks: tuple[str, ...], minimum: int) -> None:
        self.list_ranks(ranks, minimum)

    @override
    def list_ranks(self, ranks: tuple[str, ...], minimum: int) -> None:
        self._listed, self._minimum = ranks, minimum
        for rank_id in ranks:
            if rank_id not in self._running:
                self._running[rank_id] = RankFact(started=asyncio.get_running_loop().time())
                self._tasks.begin(self._run(rank_id))
        if self._hurry is None and self._world.members and worlds.starting(self._facts()):
            self._hurry = asyncio.get_running_loop().call_later(NEWCOMERS, self._wait_no_longer)
        self._consider()

    def _wait_no_longer(self) -> None:
        self._hurries = True
        self._consider()

    def _end_wait(self) -> None:
        self._hurries = False
        if self._hurry is not None:
            self._hurry.cancel()
            self._hurry = None

    @override
    def reform(self) -> None:
        world = self._world
        if self._state is SessionState.SETTLED:
            for rank_id in worlds.overdue(self._facts()):
                self._stop_late(rank_id, "is not ready for a world in time")
            return
        for rank_id in worlds.late(self._facts(), told_broken=world.told_broken):
            where = "has not left a world that is broken" if world.told_broken else "has not come to a world"
            self._stop_late(rank_id, f"{where} in time")
        if not worlds.absent(self._facts(), told_broken=True):
            return  # Newcomers, whose end is heard of.
        world.given_up = world.told_broken  # Else it breaks now, and who is connected has as long to leave it.
        world.broken = True
        self._consider()

    @override
    def break_up(self) -> None:
        if self._state is SessionState.SETTLED:
            self._world.broken = True
            self._consider()

    def _stop_late(self, rank_id: str, why: str) -> None:
        if rank_id not in self._world.late:
            rank = self.rank_of.get(rank_id)
            place = f"rank {printable(rank_id)}" if rank is None else f"rank {rank} ({printable(rank_id)})"
            log.warning("%s %s: it is stopped, and counts as failed", place, why)
            self._world.late.add(rank_id)
            self._runner.stop_rank(rank_id, stacks=True)

    @override
    async def close(self, grace: float) -> None:
        awaited = worlds.absent(self._facts(), told_broken=True) if self._world.told_broken else ()
        self._closing = True
        self._end_wait()
        self._runner.stop_ranks(stacks=awaited)
        await self._tasks.end(self._running, grace)

    @override
    def heard(self, rank_id: str, word: Mapping[str, Any]) -> None:
        said = messages.read_rank_word(word)
        rank = self._running.get(rank_id)
        if rank is None or self._over:
            return
        self._note_again(rank_id, said)
        if isinstance(said, messages.ReadyForWorld):
            self._set(rank_id, ready=True, connected=False, done=False, hung=False, part=said.part)
        elif said.world != self._world.number or rank_id not in self._world.members or rank.ready:
            return  # Of a world that is over.
        elif isinstance(said, StoreAsk):
            for who, answer in self._world.store.ask(rank_id, said):
                self._tell(who, answer)
            return
        elif isinstance(said, messages.Offer):
            for who, offered in self._world.exchanges.offer(rank_id, said, self.rank_of):
                self._tell(who, offered)
            return
        else:
            self._advance(rank_id, said)
        self._consider()

    def _note_again(self, rank_id: str, said: messages.RankWord) -> None:
        world = self._world
        comes_back = isinstance(said, messages.ReadyForWorld) and not (world.broken or world.exits)
        if world.finished and rank_id in world.members and (comes_back or isinstance(said, messages.Synced)):
            world.again = True

    def _advance(self, rank_id: str, said: messages.RankWord) -> None:  # one case a word
        match said:
            case messages.AgreementWanted():
                self._tell_members(self._world.agreeing.want())
            case messages.Prepared():
                self._tell_members(self._world.agreeing.prepared(rank_id, said, self._world.members))
            case messages.Connected():
                self._set(rank_id, connected=True)
                self._begun(rank_id)
            case messages.Synced():
                self._had_state = True
                self._set(rank_id, synced=True)
            case messages.Static():
                self._world.static = True
            case messages.Done():
                self._set(rank_id, done=True)
            case messages.StateLost():
                self._world.state_lost = True
            case messages.PeerLost():
                self._world.broken = True
            case messages.Hung():
                self._set(rank_id, hung=True)
            case _:
                raise InvalidDocument(f"{type(said).__name__} is not a word of a rank of a world")

    def _begun(self, rank_id: str) -> None:
        """The last of all members tells of it, in whatever order their agents bring what came after.

        One whose training is over may have ended by then, and others may have missed it. Where one that was killed or
        has failed is heard of first, the world does not count.
        """
        world = self._world
        was_complete = world.begun.issuperset(world.members)
        world.begun.add(rank_id)
        if world.begun.issuperset(world.members) and not was_complete and not any(world.exits.values()):
            self._callbacks.on_world(list(world.members))

    # Processes

    async def _run(self, rank_id: str) -> None:
        code = LOST
        for attempt in range(START_ATTEMPTS):
            interface = self._runner.interface(rank_id) or ""
            code = await self._runner.run_rank(rank_id, attempt, self._environment(rank_id, interface))
            # A killed rank that no other has met starts again by itself. One that fails by itself would fail again.
            can_start = rank_id in self._listed and self._runner.interface(rank_id) is not None
            if self._over or self._world.members or code >= 0 or not can_start:
                break
            if attempt + 1 < START_ATTEMPTS:
                self._callbacks.on_exit(rank_id, code, False)
                self._running[rank_id] = RankFact(started=asyncio.get_running_loop().time())
                self._consider()
        del self._running[rank_id]
        self._world.store.forget(rank_id)
        is_member = rank_id in self._world.members
        left_out = rank_id not in self._listed and not is_member
        given_up = self._world.given_up and rank_id not in self._world.late
        self._callbacks.on_exit(rank_id, code, self._over or code == 0 or left_out or given_up)
        if not self._over and (is_member or not self._world.members):
            self._world.exits[rank_id] = code
        self._consider()
        self._callbacks.on_over(rank_id)

    def _environment(self, rank_id: str, interface: str) -> dict[str, str]:
        return {messages.NAME: rank_id, "GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}

    # Worlds

    @property
    def _over(self) -> bool:
        return self._closing or self._outcome is not None

    def _facts(self) -> Facts:
        world = self._world
        return Facts(
            self._listed,
            self._minimum,
            self._running,
            world.members,
            world.exits,
            broken=world.broken,
            had_state=self._had_state,
            state_lost=world.state_lost,
            finished=world.finished,
            hurries=self._hurries,
            may_be_alone=self.may_be_alone,
        )

    def _is_whole(self) -> bool:
        return not self._world.broken and all(each in self._running for each in self._world.members)

    def _consider(self) -> None:
        """Whatever has happened: have it decided, and do it."""
        if self._over:
            return
        decision = worlds.decide(self._facts())
        self._state, self._outcome = decision.state, decision.outcome
        if self._outcome is not None:
            self._runner.stop_ranks()
        self._say(decision)
        if decision.form:
            self._form(decision.form, decision.alike)
        self._callbacks.on_change()

    def _say(self, decision: Decision) -> None:
        world = self._world
        for rank_id in decision.stop:
            self._stop_late(rank_id, "says that it cannot leave a world that is broken")
        for rank_id in decision.left_out:
            self._set(rank_id, ready=False)
            self._tell(rank_id, messages.LeftOut())
        if decision.is_broken and not world.told_broken:
            world.told_broken = True
            self._tell_members(messages.WorldBroken(world.number))
        if decision.all_done and not world.finished:
            world.finished = True
            self._tell_members(messages.AllDone(world.number))
        if decision.wants_another and world.leaving != decision.leaving:
            world.leaving = decision.leaving
            self._changes += 1
            self._tell_members(messages.AnotherWanted(world.number, self._changes, decision.leaving))
            self._tell_members(world.agreeing.want())

    def _form(self, chosen: tuple[str, ...], alike: int) -> None:
        self._end_wait()
        before = self._world
        self._in_vain = self._in_vain + 1 if before.broken and not before.exits else 0
        ranks = {rank_id: rank for rank, rank_id in enumerate(chosen)}
        self._world = _World(before.number + 1, chosen, ranks, agreeing=Agreeing(before.number + 1))
        local = local_ranks(chosen, self._runner.host)
        for rank, rank_id in enumerate(chosen):
            self._set(rank_id, ready=False, part=False)
            number, in_vain, here = self._world.number, self._in_vain, local[rank_id]
            place = messages.EnterWorld(number, rank, len(chosen), alike, in_vain, here.rank, here.size)
            self._tell(rank_id, place)
        self._consider()

    def _set(self, rank_id: str, **changes: bool) -> None:
        self._running[rank_id] = replace(self._running[rank_id], **changes)

    def _tell_members(self, word: SessionWord | None) -> None:
        """Those that are ready for another world have left this one."""
        for rank_id, rank in self._facts().here.items() if word else ():
            if word and not rank.ready:
                self._tell(rank_id, word)

    def _tell(self, rank_id: str, word: SessionWord) -> None:
        self._runner.tell(rank_id, messages.write_session_word(word))
