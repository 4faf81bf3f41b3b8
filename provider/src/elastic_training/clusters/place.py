"""Interface of a place where runs live: a store of documents, a set of workers, and a view of both.

A place decides nothing about a run: :class:`~elastic_training.clusters.cluster.Cluster` does, the same for all places.
``docs/extending.md`` links to a complete one.
"""

from __future__ import annotations

import asyncio
import functools
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Concatenate, ParamSpec, TypeVar

from typing_extensions import override

from elastic_runtime.errors import InvalidSettings, RunNotFound
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import Status, WorkerStatus
from elastic_training.clusters.claims import Observed, Times
from elastic_training.clusters.document import RunDocument
from elastic_training.clusters.types import LogLines, Quiet, RunRef, RunSummary, StatusChanged, Update, differing

JOINABLE = "on this machine, in a pool, in pods, Slurm, Ray or Spark"
"""Places whose runs machines can join."""
T = TypeVar("T")
S = TypeVar("S")
P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Scale:
    """How many workers a run is asked to have."""

    workers: int
    version: Any = None
    """The place's own: tells whether it has been changed since."""


class Place(ABC):
    """Where runs live. Methods raise only errors of :mod:`elastic_runtime.errors`; they may be slow, and never block.

    What changes something is conditional on what was read, and raises Conflict when that has been changed since; then
    it is read and decided anew. So two parties can neither both win, nor work on different incarnations.
    """

    times = Times()

    @property
    @abstractmethod
    def where(self) -> str:
        """For messages, behind the name of a run: ``in /srv/runs``."""

    def worker_log(self, name: str, worker: str) -> str:
        """Describe where the log of a worker is, for :meth:`~elastic_training.clusters.cluster.Cluster.worker_log`."""
        return f"that of {worker} of run {name} {self.where}"

    def shell_in(self, worker: WorkerStatus) -> tuple[str, ...]:  # noqa: ARG002  # for places whose workers are on this machine
        """Return the words of a command that opens a shell in a worker. Empty: workers run on this machine."""
        return ()

    @abstractmethod
    async def plan(self, spec: RunSpec) -> str:
        """Describe what would be created. Raise InvalidSettings if the place cannot run that spec."""

    def set_rank_credentials(self, credentials: Mapping[str, str]) -> None:
        """Remember the variables with the checkpoint store's credentials, for the ranks of the run to be created.

        They are secret: in no document, log or plan of the place, and readable for the run's own processes alone.

        Raises:
            InvalidSettings: the place cannot hand them over.
        """
        if credentials:
            problem = f"workers {self.where} are given no credentials from an Airflow connection"
            remedy = "Leave it out, and give the workers credentials or an identity of their own"
            raise InvalidSettings("checkpoint_conn_id", problem, remedy)

    # The store.

    @abstractmethod
    async def read(self, name: str) -> RunDocument | None:
        """The document under this name; None when there is none."""

    @abstractmethod
    async def create(self, spec: RunSpec, owner: str) -> RunDocument:
        """Lay a run down, whole or not at all, and start its launcher.

        Raises:
            Conflict: there is a run of that name, and not of this uid.
            InvalidSettings: this place cannot run that spec.
        """

    @abstractmethod
    async def change(self, found: RunDocument, wanted: RunDocument) -> RunDocument:
        """Compare and set: the document as it is now. Raises Conflict, or RunNotFound."""

    @abstractmethod
    async def remove(self, found: RunDocument, *, forced: bool) -> bool:
        """One step of ending what is left of the run, and removing all of it but its checkpoints.

        Args:
            found: as read; called again with what is read then.
            forced: it had its time to end in order.

        Returns:
            Whether it is gone.

        Raises:
            Conflict: the document has been changed since it was read.
        """

    @abstractmethod
    async def list(self) -> Iterable[RunSummary]:
        """All runs that are there and complete, at the cost of a few requests for all of them together."""

    def cached(self, ref: RunRef, *, trusted: bool) -> RunDocument | None:  # noqa: ARG002  # for those that have one
        """The document as this process has seen it lately, if that spares a request.

        Args:
            ref: of the run.
            trusted: only when it can be believed this moment; otherwise it may be old, which a change finds out.
        """
        return None

    # What is seen.

    @abstractmethod
    async def observe(self, found: RunDocument) -> Observed:
        """How the run is doing; failed with ``launcher_lost`` when its launcher is gone without a final status."""

    @abstractmethod
    def watch(self, ref: RunRef, cursor: str | None, beat: float) -> AsyncGenerator[Update, None]:
        """Yield the updates of a run, as :meth:`~elastic_training.clusters.cluster.Cluster.watch` specifies."""

    async def tidy(self, found: RunDocument) -> None:  # noqa: ARG002  # for places in which there can be any
        """End what still computes for a run that was cancelled or collected, and that no launcher will end."""
        return

    def differing(self, found: RunDocument, spec: RunSpec) -> tuple[str, ...]:
        """Settings in which a run that is there differs from what is asked for now."""
        return differing(found.spec, spec)

    # The workers.

    @abstractmethod
    async def scale(self, name: str) -> Scale:
        """How many workers are asked for under this name; 0 when there is nothing to ask any more."""

    @abstractmethod
    async def resize(self, found: RunDocument, scale: Scale, workers: int) -> None:
        """Ask for so many, if the scale is still what was read. Raises Conflict, or RunNotFound."""

    @abstractmethod
    async def reclaim(self, found: RunDocument, worker: str, grace: timedelta) -> bool:
        """Send a worker the notice that it will be taken after that time; False when there is no such worker."""

    async def join_command(self, found: RunDocument, lifetime: timedelta) -> str:  # noqa: ARG002  # for those that can
        """Return a command with a new token, by which a machine may join the run, once. Secret. It has ``spec.join``.

        Raises:
            Conflict: not now.
            InvalidSettings: machines may not join this run.
        """
        problem = f"machines cannot join a run that is {self.where}"
        raise InvalidSettings("workers.join", problem, f"Train {JOINABLE}")


class PolledPlace(Place):
    """A place in which nothing says that something has happened, so that a watch looks again and again."""

    poll = 0.5
    """Seconds between two looks."""
    linger = 10.0
    """Seconds that the end of a watch waits for the launcher's last lines after the final status."""

    @abstractmethod
    async def read_log(self, found: RunDocument, cursor: str, *, ended: bool) -> LogLines:
        """Whole lines from ``cursor`` on, as many as are convenient.

        Args:
            found: whose log.
            cursor: LOG_START, or from the last call.
            ended: nobody writes any more, so that an unfinished last line counts too.
        """

    @override
    async def watch(self, ref: RunRef, cursor: str | None, beat: float) -> AsyncGenerator[Update, None]:
        now = asyncio.get_running_loop().time
        told: Status | None = None
        spoke, over_since = now(), None
        while True:
            found = checked(await self.read(ref.name), ref)
            # The order counts: a launcher that was gone before the log was read has written all of it.
            seen = await self.observe(found)
            final = seen.status.phase.final
            if final and over_since is None:
                over_since = now()
            if cursor is not None:
                read = await self.read_log(found, cursor, ended=not seen.launcher)
                if read.lines:
                    cursor, spoke = read.cursor, now()
                    yield read
                    continue  # There may be more of them at once.
            drained = over_since is not None and (not seen.launcher or now() > over_since + self.linger)
            if seen.status != told and (drained or not final):
                told, spoke = seen.status, now()
                yield StatusChanged(told)
            if drained:
                return
            if now() >= spoke + beat:
                spoke = now()
                yield Quiet()
            await self.rest(min(self.poll, beat))

    async def rest(self, seconds: float) -> None:
        """Sleep between two polls of the place. Tests replace it."""
        await asyncio.sleep(seconds)


def checked(found: RunDocument | None, ref: RunRef) -> RunDocument:
    """The document, if it is of that incarnation and there to stay. Raises RunNotFound."""
    if found is None:
        raise RunNotFound(f"run {ref.name} does not exist")
    if found.ref != ref:
        raise RunNotFound(f"the run {ref.name} with uid {ref.uid} has been replaced by {found.ref.uid}")
    if found.going:
        raise RunNotFound(f"the run {ref.name} with uid {ref.uid} is being deleted")
    return found


def in_thread(
    method: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """A method that blocks, as one that does not."""

    @functools.wraps(method)
    async def called(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.to_thread(method, self, *args, **kwargs)

    return called
