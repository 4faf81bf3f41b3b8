"""Interface of an engine to launcher, agents and warm processes: how its ranks start, and form worlds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

HOW_TO_JOIN = (
    "Put its training into a function under @elastic.run (hvd.elastic.run, or elastic_runtime.torch.elastic.run), or "
    "run a script that is written for torchrun or horovodrun with restart=Restart()"
)
"""To people whose script runs, and whose ranks never meet."""


class SessionState(StrEnum):
    """Where a session stands."""

    FORMING = "forming"
    """Ranks of the next world are decided, and connecting to each other: no change now."""
    SETTLED = "settled"
    """All of them are connected and train."""
    WAITING = "waiting"
    """All of them wait for the next world, for too few ranks are listed."""
    FINISHING = "finishing"
    """A rank of the world has ended with code 0, or all have ended their training. No change any more."""
    ENDED = "ended"
    """The session is over. :attr:`SessionFact.outcome` says how."""


class Stage(StrEnum):
    """Stage of a session whose state is FORMING: what it waits for."""

    CONNECTING = "connecting"
    """The ranks of the next world, to start, to be ready, and to connect. Those of the last one run no script."""
    RETURNING = "returning"
    """The ranks of a world that is over, to come back from the script."""
    LEAVING = "leaving"
    """Processes, to end as they were asked to; their agents bound that."""


class SessionOutcome(StrEnum):
    """How a session ended, as far as deciding goes."""

    SUCCEEDED = "succeeded"
    EARLY_EXIT = "early_exit"
    FAILED = "failed"
    """Its ranks ended by themselves, with codes other than 0."""
    LOST = "lost"
    """Its ranks were killed, or went with their workers."""
    SHORT = "short"
    """Its ranks were asked to write their checkpoints and end, and too few are left for another world."""
    REFUSED = "refused"
    """Its ranks ended with an error before their first step, in a world of another size than the last that worked."""


@dataclass(frozen=True, slots=True)
class SessionFact:
    """The present life of a session."""

    state: SessionState
    listed: tuple[str, ...]
    """Rank ids that it may use, in order."""
    outcome: SessionOutcome | None = None
    """Set exactly when the state is ENDED."""
    detail: str = ""
    """For people: more about the outcome; in a world that is over: which of its ranks have ended, and how."""
    world: int = 0
    """Counts the worlds that were decided, also those that were never complete."""
    holders: tuple[str, ...] | None = None
    """Rank ids that run and have the state, or may have it, by rank; None while there is no state to have, since no
    world was complete yet."""
    minimum: int = 1
    """Fewest ranks of its worlds, as it was told last."""
    hung: bool = False
    """All holders say that they cannot leave a world that is over."""
    given_up: bool = False
    """:meth:`Session.reform` was called at this stage."""
    waiting: tuple[str, ...] = ()
    """Those of the holders that wait for a world, by rank: they can write what they hold."""
    size: int = 0
    """With REFUSED: ranks of the world that failed."""
    before: int = 0
    """With REFUSED: ranks of the last world that worked."""
    restarts: bool = False
    """Each world has fresh processes: those of the last one are asked to write the script's own checkpoint and end."""
    static: tuple[str, ...] = ()
    """Rank ids of the present world, by rank, if its script trains without a state: no other rank can join them."""
    stage: Stage = Stage.CONNECTING
    awaited: tuple[str, ...] = ()
    """Rank ids that run and have not come to where the others wait, where the engine knows."""
    arrived: tuple[str, ...] = ()
    """Rank ids that wait for these there."""
    starting: tuple[str, ...] = ()
    """Rank ids that were started for the next world and are not ready for it, the first one first."""
    done: bool = False
    """With FINISHING: all ranks have ended their training, none has ended with code 0, and none wants another world."""
    again: bool = False
    """With FINISHING: a rank trains once more after all had ended their training. Its world never changes any more."""
    unheard: tuple[str, ...] = ()
    """Rank ids that may have the state, too: their world was connected and has lost a rank, they run, and have told
    neither that they have it nor that they have come back."""
    prepares: bool = False
    """The script runs for as long as it likes before its rank is ready: it joins a world with its training function."""


class RankRunner(Protocol):
    """Where ranks run: the pool of workers."""

    def interface(self, rank_id: str) -> str | None:
        """Network interface of the worker that would run this rank; None when there is none."""

    def host(self, rank_id: str) -> str:
        """Where that rank runs: the same text for ranks of one machine, or of one pod."""

    async def run_rank(self, rank_id: str, attempt: int, environment: Mapping[str, str]) -> int:
        """Run it to its end; :data:`~.exits.LOST` when its worker goes. Returns the exit code."""

    def ended_by_itself(self, rank_id: str) -> bool:
        """Whether this rank's last process is known to have ended by itself, for want of memory, or with its worker.

        Others may have been asked to end before that was heard, and so may this one.
        """

    def tell(self, rank_id: str, word: Mapping[str, Any]) -> None:
        """Send a message to the callbacks of this rank's engine, in the order of the calls. Lost ranks get nothing.

        Args:
            rank_id: that :meth:`run_rank` runs.
            word: JSON, which only the engine understands; under 64 KiB.
        """

    def stop_rank(self, rank_id: str, *, stacks: bool = False) -> None:
        """Ask this one to end; with ``stacks`` it writes first where it stands, since others have waited for it."""

    def stop_ranks(self, *, stacks: Collection[str] = ()) -> None:
        """Ask every rank to end; the ranks of ``stacks`` write first where they stand."""

    def interrupt_ranks(self) -> None:
        """Ask every rank to write its checkpoint and end, as the run's ``restart`` says; who does not is killed."""

    def kill_ranks(self, *, stacks: bool = False) -> None:
        """End every rank at once; with ``stacks`` each writes first where it stands."""


@dataclass(frozen=True, slots=True)
class SessionCallbacks:
    """Whom a session tells what happens in it; all are called in the event loop that opened it."""

    on_change: Callable[[], None]
    """:attr:`Session.fact` may have changed."""
    on_world: Callable[[list[str]], None]
    """A world is complete, of these rank ids by rank."""
    on_exit: Callable[[str, int, bool], None]
    """The process of a rank id has ended with this code; True: as expected, since it was no member of the world any
    more, or the training is over."""
    on_over: Callable[[str], None]
    """No process will run under this rank id any more."""
    on_start: Callable[[int], int] = lambda _size: 0
    """Fresh processes of the script are started for a world of so many ranks; only by engines that restart ranks.
    Returns how often they were before, in this run."""
    worked_before: Callable[[int], int] = lambda _size: 0
    """Ranks of the last world that worked, if it had another size than this one, which has told of no progress yet;
    0: there was none, or it has."""
    gave_up_peer: Callable[[str], bool] = lambda _rank_id: False
    """Whether the last lines of a rank id that has failed say that another rank is gone."""


class Session(Protocol):
    """Ranks that form one world after another, and hand the state on from each to the next, until none is left."""

    @property
    def fact(self) -> SessionFact:
        """Return the current state of the session."""

    @property
    def rank_of(self) -> Mapping[str, int]:
        """Rank by rank id, in the present world or the one that is forming."""

    def open(self, ranks: tuple[str, ...], minimum: int) -> None:
        """Start with these ranks.

        Args:
            ranks: rank ids, in the order in which newcomers are to be numbered.
            minimum: fewest ranks of a world.
        """

    def list_ranks(self, ranks: tuple[str, ...], minimum: int) -> None:
        """Use these from the next world on, which is to come soon if they are others than the present one's."""

    def heard(self, rank_id: str, word: Mapping[str, Any]) -> None:
        """A rank that runs has sent this as :class:`~elastic_runtime.protocol.rank_link.EngineWord`.

        Raises:
            InvalidDocument: no rank of this engine says that.
        """

    def committed(self) -> None:
        """Rank 0 has told of progress: every rank of the present world has the state."""

    def reform(self) -> None:
        """Give up the world that is forming, and have another one formed by those of its ranks that are there.

        Those that have not come so far are stopped, and so are those that do not come back from a world that is over;
        where a world has broken, not those that have the state, unless another that has it is there. For a session with
        :attr:`SessionFact.holders`. If no world is forming, only the first of :attr:`SessionFact.starting` are stopped.
        """

    def break_up(self) -> None:
        """Have the present world, which is complete, end as if a rank were lost, and its ranks form another."""

    async def close(self, grace: float) -> None:
        """End it; every rank is stopped, and has ended when this returns.

        Args:
            grace: seconds that ranks have, on top of which some are allowed for their agents' answers.
        """


class Engine(Protocol):
    """Engine that makes ranks a world. One object serves all runs. Creating and reading it imports nothing heavy."""

    name: str
    """Name, as in :attr:`RunSpec.engine <elastic_runtime.run.spec.RunSpec.engine>`."""
    preload: tuple[str, ...]
    """Modules that a warm process imports, so that the ranks that it forks need not."""
    world: str
    """``module:object`` of the :class:`~elastic_runtime.world.World` of a rank, imported there."""

    def session(self, runner: RankRunner, address: str, port: int, callbacks: SessionCallbacks) -> Session:
        """A session that is not open yet.

        Args:
            runner: starts the ranks.
            address: on which to listen, where the ranks reach it.
            port: to listen on; 0 for any free one.
            callbacks: hear of it.
        """
