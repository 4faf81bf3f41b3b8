"""Interface of the place where a launcher runs, with one implementation per kind of cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from elastic_runtime.launcher.decision.facts import LeadershipState, Refusal
from elastic_runtime.launcher.joining import Joining
from elastic_runtime.protocol.wire import Hello
from elastic_runtime.run.status import Status


@dataclass(frozen=True, slots=True)
class Machine:
    """Kind of machine that a worker runs on. None: not known."""

    capacity_type: str | None = None
    """``spot``, ``on-demand``, or what else the cloud calls it."""
    instance_type: str | None = None


@dataclass(frozen=True, slots=True)
class Share:
    """Workers that a place gives to a run."""

    workers: int
    words: str = ""
    """Why there are not as many as asked for, for people; empty: there are."""


class Documents(Protocol):
    """Documents of a run: requests and status, in the place where both sides read and write."""

    def asked(self) -> int | str | None:
        """Workers asked for, by whomever; the text that stands there, if it is no number; None: nothing is there."""

    def ask(self, workers: int) -> None:
        """Have that asked for instead, soon, unless somebody asks for something else meanwhile.

        Harmless when repeated until :meth:`asked` says so.
        """

    def requests(self) -> str | None:
        """Requests for sizes, as :class:`~elastic_runtime.launcher.record.askers.Askers` reads them; None: none."""
        return None

    def cancel(self) -> str | None:
        """Why somebody asked for the end, if so."""

    def lease_age(self) -> float | None:
        """Seconds since the lease was renewed; None where there are no leases."""

    def watched(self) -> bool:
        """Whether anybody has watched the run since its last claim."""

    def stacks_asked(self) -> str | None:
        """Another text whenever somebody has asked where the ranks stand; None: nobody has."""
        return None

    def publish(self, status: Status) -> None:
        """Let everybody read it, soon."""

    async def flush(self) -> None:
        """Return once the last status has been written, by a launcher that still owns the run.

        At once, unless a place does otherwise.

        Raises:
            OwnershipLost: another launcher has the run.
        """
        return


class WorkerSet(Protocol):
    """The machines and what runs on them. By default nobody knows more of them than their agents say."""

    def share(self, wanted: int, /) -> Share:
        """Workers to train with, where so many are asked for. By default these; a pool may give others."""
        return Share(wanted)

    def only(self, _workers: int, /) -> None:
        """The script cannot train with more than so many: have no further ones come unless somebody asks for them."""
        return

    def expects(self, _worker: str, /) -> bool:
        """Whether a worker of that name can be there; whoever claims another one is turned away."""
        return True

    async def prove(self, _hello: Hello, /) -> str | None:
        """Check that an agent is in the worker that it says it is. Takes seconds at most.

        Returns:
            Why it cannot be, for people, without anything secret; None: it may connect, as everybody may by default.
        """
        return None

    def admit(self, _hello: Hello, /) -> None:
        """This agent, with whose hello :meth:`prove` found no fault, is connected, as the only one of its worker."""
        return

    def stray(self, _worker: str, /) -> str | None:
        """Why an agent that is connected cannot be of the run any more, for people; None: it may be."""
        return None

    def refusal(self) -> Refusal | None:
        """Return the reason why wanted workers do not come, if there is one."""
        return None

    def deadline(self, _worker: str, /) -> datetime | None:
        """When this worker will be taken, if the place says so; its agent may have heard nothing yet."""
        return None

    def machine(self, _worker: str, /) -> Machine | None:
        """Return the machine of this worker, as far as it is known."""
        return None

    def replace(self, _worker: str, /) -> None:
        """This worker's machine will be taken, or is, and nothing of the world is there: have another one come now.

        By default its agent's end is enough for that.
        """
        return

    def end(self, _worker: str, /) -> str:
        """This worker is lost, but may only be stopped, or cut off: end what is left of it, and have another one come.

        Returns:
            What will be done, for people; by default nothing can be.
        """
        return "what is left of it stays"

    def memory_limit(self, _worker: str, /) -> int | None:
        """Bytes that this worker may use at most, now; None: not known, or not limited."""
        return None

    def out_of_memory(self) -> tuple[str, ...]:
        """Return workers that have ended because they ran out of memory, since the last call."""
        return ()

    def can_give_memory(self) -> bool:
        """Whether :meth:`give_memory` may work."""
        return False

    def give_memory(self, _worker: str, _limit: int, /) -> None:
        """Have this worker, or another in its place, and all that start later, have that limit in bytes, soon.

        The other workers stay as they are.
        """
        return

    def came(self, _worker: str, /) -> None:
        """An agent of this worker is connected."""
        return

    def gone(self, _worker: str, /) -> None:
        """It is connected no more, however that came about."""
        return

    def warnings(self) -> tuple[str, ...]:
        """Return warnings about workers that are not connected, since the last call. Each becomes an event."""
        return ()

    async def end_workers(self) -> None:
        """The run is over: no worker is left when this returns, or a bounded time has passed."""


class Platform(Documents, Protocol):
    """The place where a run is. All but the coroutines answer at once, from what was heard last."""

    workers: WorkerSet
    joining: Joining | None = None
    """Lets machines join by hand. None: they may not."""

    def leadership(self) -> LeadershipState:
        """How this launcher stands to other launchers of the run; by default there are no others."""
        return LeadershipState.HELD

    def open(self, port: int, on_change: Callable[[], None]) -> None:
        """Begin to watch, and to have workers started that dial ``port``.

        Args:
            port: at which the launcher listens for agents.
            on_change: called in the event loop when any of the answers may have changed.
        """

    async def end_workers(self) -> None:
        """The run is over: no worker is left when this returns, or a bounded time has passed."""

    async def close(self) -> None:
        """Stop watching. Workers that nobody else looks after have ended when this returns."""


def lowest_ranks(status: Status) -> dict[str, int]:
    """Return the lowest rank of each worker that has one, by its name."""
    return {worker.name: min(worker.ranks) for worker in status.workers if worker.ranks}


class LeaseAge:
    """Measured by the launcher's own clock from the last change that it has seen.

    Whoever renews it may be another machine, with another clock: what the lease says of the time is not compared.

    Args:
        now: monotonic seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._mark: object = None
        self._since = now()

    def see(self, mark: object) -> None:
        """Look at the lease: whatever is different after each renewal; None: there is none."""
        if mark != self._mark:
            self._mark = mark
            self.restart()

    def restart(self) -> None:
        """Count from now on, as when nobody could renew it until now."""
        self._since = self._now()

    def __call__(self) -> float | None:
        """Seconds since it was renewed; None: there is no lease."""
        return None if self._mark is None else self._now() - self._since
