"""What a launcher needs of the place where it runs; one implementation per kind of cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from elastic_runtime.launcher.facts import LeadershipState, Refusal
from elastic_runtime.status import Status


@dataclass(frozen=True, slots=True)
class Machine:
    """What a worker runs on."""

    capacity_type: str | None = None
    """``spot``, ``on-demand``, or what else the cloud calls it."""
    instance_type: str | None = None


class Platform(Protocol):
    """The place where the workers run. All but the coroutines answer at once, from what was heard last."""

    def open(self, port: int, on_change: Callable[[], None]) -> None:
        """Begin to watch, and to have workers started that dial ``port``.

        Args:
            port: at which the launcher listens for agents.
            on_change: called in the event loop when any of the answers below may have changed.
        """

    def wanted(self) -> int:
        """Workers asked for."""

    def cancel(self) -> str | None:
        """Why somebody asked for the end, if so."""

    def lease_age(self) -> float | None:
        """Seconds since the lease was renewed; None where there are no leases."""

    def watched(self) -> bool:
        """Whether anybody has watched the run since its last claim."""

    def leadership(self) -> LeadershipState:
        """How this launcher stands to other launchers of the run."""

    def refusal(self) -> Refusal | None:
        """What keeps workers that are wanted from coming, if something does."""

    def deadline(self, worker: str, /) -> datetime | None:
        """When this worker will be taken, if the place says so; its agent may have heard nothing yet."""

    def machine(self, worker: str, /) -> Machine | None:
        """What this worker runs on, as far as known."""

    def replace(self, worker: str, /) -> None:
        """This worker's machine will be taken, or is, and nothing of the world is there: have another one come now."""

    def publish(self, status: Status) -> None:
        """Let everybody read it, soon."""

    async def end_workers(self) -> None:
        """The run is over: no worker is left when this returns, or a bounded time has passed."""

    async def flush(self) -> None:
        """What was published last has been written, by a launcher that has the run still, when this returns.

        Raises:
            OwnershipLost: another launcher has the run.
        """

    async def close(self) -> None:
        """Stop watching. Workers that nobody else looks after have ended when this returns."""
