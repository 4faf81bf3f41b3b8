"""The rank's side: what it says to its session, what it is told, and what of that is still to be waited for."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from elastic_runtime.engines.torch import messages
from elastic_runtime.engines.torch.messages import (
    AgreeAt,
    AllDone,
    AnotherWanted,
    EnterWorld,
    LeftOut,
    Offered,
    Prepare,
    RankWord,
    StoreAnswer,
    StoreAsk,
    WorldBroken,
)
from elastic_runtime.protocol.rank_link import EngineWord, RankLink

MOST_IN_VAIN = (5, 30.0)
"""Worlds, and seconds: after so many, and so long, what breaks them is the script, or a network that does not heal."""


class WorldLost(Exception):
    """The world that this rank is in, or is about to be in, is broken."""


class StoreTimeout(TimeoutError):
    """Another rank has not said in time what this one waits for in the world's store."""


class Channel:
    """Between a rank and its session; methods may be called in any thread.

    Args:
        link: to the agent.
        on_another: called, in the link's thread, when the present world is to be left at the next commit.
        on_broken: called there when the present world is broken.
    """

    def __init__(
        self, link: RankLink, on_another: Callable[[AnotherWanted], None], on_broken: Callable[[], None]
    ) -> None:
        self._link, self._on_another, self._on_broken = link, on_another, on_broken
        self._changed = threading.Condition()
        self._serials = itertools.count(1)
        self._answers: dict[int, StoreAnswer] = {}
        self._entered: EnterWorld | LeftOut | None = None
        self._world = 0
        self._broken = self._all_done = self._gone = False
        self._vain, self._vain_since = 0, 0.0
        self._begun = self._hung_in = 0
        self._preparing = False
        self._agreements: set[int] = set()
        self.on_offered: Callable[[Offered], None] = lambda _said: None
        """Called in the link's thread with what others have offered."""
        link.set_engine_callbacks(self._hear, self._disconnected, self._noticed)

    @property
    def is_broken(self) -> bool:
        """Whether the present world is."""
        return self._broken

    @property
    def breaks_again_and_again(self) -> bool:
        """Whether world after world has broken though no rank was lost; see :data:`MOST_IN_VAIN`."""
        most, seconds = MOST_IN_VAIN
        return self._vain >= most and time.monotonic() - self._vain_since > seconds

    def next_world(
        self, while_waiting: Callable[[], None], look: float, *, has_part: bool = False
    ) -> EnterWorld | None:
        """Wait for the next world, having left the present one; None: this rank is in none any more.

        Args:
            while_waiting: called every ``look`` seconds meanwhile, and before None is returned: what the agent said
                before that word has been read by then.
            look: seconds.
            has_part: as :class:`~.messages.ReadyForWorld` has it.

        Raises:
            ConnectionError: the agent is gone, and with it the run.
        """
        self._say(messages.ReadyForWorld(has_part))
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._entered or self._gone, look)
                (entered, self._entered), gone = (self._entered, None), self._gone
            if isinstance(entered, EnterWorld):
                if not entered.in_vain:
                    self._vain_since = time.monotonic()
                self._vain = entered.in_vain
                return entered
            if gone and not entered:
                raise ConnectionError("the agent of this rank is gone")
            while_waiting()
            if entered:
                return None

    def connected(self) -> None:
        """This rank is, to all others of the world."""
        self._say(messages.Connected(self._world))

    def synced(self) -> None:
        """This rank has the state."""
        self._say(messages.Synced(self._world))

    def static(self) -> None:
        """This rank trains without a state."""
        self._say(messages.Static(self._world))

    def done(self) -> None:
        """Say that this rank's training is over, and wait until that of all is.

        Raises:
            WorldLost: it will not be, in this world.
            ConnectionError: the agent is gone.
        """
        self._say(messages.Done(self._world))
        self._wait(lambda: self._all_done, None)

    def agrees(self) -> bool:
        """Whether all ranks agree at the commit that begins with this call; waits while that is being settled.

        They do at the first of each world, whatever they have heard.

        Raises:
            WorldLost: the world is broken.
            ConnectionError: the agent is gone.
        """
        with self._changed:
            self._begun += 1
            self._changed.wait_for(lambda: not self._preparing or self._broken or self._gone)
            if self._broken or self._preparing:
                self._raise()
            return self._begun in self._agreements

    def peer_lost(self) -> None:
        """Something with the others has failed here: have them hear it."""
        if not self._broken:
            self._broken = True
            self._say(messages.PeerLost(self._world))

    def hung(self) -> None:
        """This rank cannot leave the present world, which is broken. Said once."""
        if self._hung_in != self._world:
            self._hung_in = self._world
            self._say(messages.Hung(self._world))

    def state_lost(self) -> None:
        """Nobody has all of the state any more: have all ranks start anew."""
        self._say(messages.StateLost(self._world))

    def offer(self, name: str, number: int, values: tuple[str, ...]) -> None:
        """Give each of the others of an exchange a value; :attr:`on_offered` is called when all have."""
        self._say(messages.Offer(self._world, name, number, values))

    def ask(self, operation: Any, *keys: str, seconds: float | None = None, **more: Any) -> StoreAnswer:
        """An operation of the world's store; see :class:`~.messages.StoreAsk`.

        Raises:
            WorldLost: the world is broken.
            StoreTimeout: there is no answer after so many seconds.
            ConnectionError: the agent is gone.
        """
        serial = self.begin(operation, *keys, **more)
        try:
            return self.answer(serial, seconds)
        except TimeoutError:  # A script may poll so, and asks that nobody waits for any more would fill the store.
            self._say(StoreAsk(self._world, serial, "give_up", keys))
            raise

    def begin(self, operation: Any, *keys: str, **more: Any) -> int:
        """Begin an operation of the world's store, for :meth:`answer`; what is not waited for ends with the world."""
        serial = next(self._serials)
        self._say(StoreAsk(self._world, serial, operation, keys, **more))
        return serial

    def answer(self, serial: int, seconds: float | None) -> StoreAnswer:
        """The answer to what was begun. Raises as :meth:`ask`."""
        self._wait(lambda: serial in self._answers, seconds)
        return self._answers.pop(serial)

    def _wait(self, until: Callable[[], bool], seconds: float | None) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: until() or self._broken or self._gone, seconds):
                raise StoreTimeout(f"the store has not answered within {seconds:.0f} s")
            if not until():
                self._raise()

    def _raise(self) -> NoReturn:
        if self._broken:
            raise WorldLost("a rank of the world is lost")
        raise ConnectionError("the agent of this rank is gone")

    def _say(self, word: RankWord) -> None:
        self._link.send(EngineWord(messages.write_rank_word(word)))

    def _noticed(self) -> None:
        if self._world:  # Else there is nobody to agree with: before the first, and in ranks that have one alone.
            self._say(messages.AgreementWanted(self._world))

    def _hear(self, word: Mapping[str, Any]) -> None:
        said = messages.read_session_word(word)
        with self._changed:
            if isinstance(said, EnterWorld):
                self._world = said.world
                self._broken = self._all_done = False
                self._begun, self._preparing, self._agreements = 0, False, {1}
                self._answers.clear()
            if isinstance(said, EnterWorld | LeftOut):
                self._entered = said
            elif isinstance(said, StoreAnswer):
                self._answers[said.serial] = said
            elif said is None or said.world != self._world:
                return
            else:
                self._hear_of_world(said)
            self._changed.notify_all()
        if isinstance(said, AnotherWanted):
            self._on_another(said)
        elif isinstance(said, WorldBroken):
            self._on_broken()
        elif isinstance(said, Offered):
            self.on_offered(said)

    def _hear_of_world(self, said: AnotherWanted | Prepare | AgreeAt | WorldBroken | AllDone | Offered) -> None:
        match said:
            case WorldBroken():
                self._broken = True
            case AllDone():
                self._all_done = True
            case Prepare():
                self._preparing = True
                self._say(messages.Prepared(said.world, said.serial, self._begun))
            case AgreeAt():
                self._agreements.add(said.commit)
                self._preparing = False

    def _disconnected(self) -> None:
        with self._changed:
            self._gone = True
            self._changed.notify_all()
        self._on_broken()
