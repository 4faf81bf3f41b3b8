"""The interface between Airflow's side and the place where the workers run.

Everything that operators, sensors and triggers do to a run goes through a :class:`Cluster`. Methods are synchronous,
short, and raise only errors of :mod:`elastic_runtime.errors`; code in an event loop calls them in a thread. Only
:meth:`Cluster.watch` is asynchronous: it is what a triggerer holds hundreds of, and each cluster has its own cheapest
way to do it (files polled here, one shared watch per namespace on Kubernetes).

Three fences keep two parties from working on one run:

* the **uid** in a :class:`RunRef` tells two incarnations of a name apart: what was decided about one is never done to
  the other;
* the **owner** is the try of the task that the run works for; a try that has been replaced can neither cancel nor
  delete (:class:`~elastic_runtime.errors.OwnershipLost`);
* the **log_lease** is the one watcher that streams the log. A triggerer that was replaced while it stood still finds
  out at its next step, instead of writing lines twice or ending a healthy run.

Every implementation passes ``tests/contract/test_cluster_contract.py``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.spec import RunSpec, WorkersSpec
from elastic_runtime.status import Status

LOG_START = "0"
"""The cursor before the first line of any log. All other cursors are opaque and the cluster's own."""

NOBODY = ""
"""Token of an log_lease that was revoked: the run has a new owner, who does not attend yet."""


@dataclass(frozen=True, slots=True)
class RunRef:
    """One incarnation of a run."""

    name: str
    """From :func:`elastic_training.naming.run_name`."""
    uid: str
    """From its :class:`~elastic_runtime.spec.RunSpec`."""


class ClaimOutcome(StrEnum):
    """What :meth:`Cluster.claim` found."""

    CREATED = "created"
    """There was no run of that name."""
    ADOPTED = "adopted"
    """A run of that name is alive, or has succeeded and nobody has collected its result."""
    REPLACED = "replaced"
    """A run of that name had ended; a new one took its place, and starts from its newest checkpoint."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A run that is now ours."""

    ref: RunRef
    outcome: ClaimOutcome
    note: str
    """For people: what was found."""
    differs: tuple[str, ...] = ()
    """Settings in which an adopted run differs from what was asked for now; it goes on with its own."""


@dataclass(frozen=True, slots=True)
class LogLease:
    """The right to stream a run's log, until somebody else attends."""

    token: str
    """Random."""
    cursor: str
    """Where the log_lease before, of whichever try, has stopped."""
    lease: float = 0.0
    """Seconds after which the run ends itself when nobody has renewed its lease; 0: never."""


@dataclass(frozen=True, slots=True)
class LogLines:
    """New whole lines of the launcher's log, without their line ends."""

    lines: tuple[str, ...]
    """None, if there is only something to be noted."""
    cursor: str
    """Behind the last of them."""
    note: bool = True
    """Whether to :meth:`Cluster.advance` to the cursor now; where that is dear, not every time."""


@dataclass(frozen=True, slots=True)
class StatusChanged:
    """A status that differs from the one before it. The first update of every watch has one."""

    status: Status


@dataclass(frozen=True, slots=True)
class Quiet:
    """Nothing has happened for a beat: time for the watcher's own chores."""


Update = LogLines | StatusChanged | Quiet


class Cluster(ABC):
    """A place where runs live. Instances are cheap, hold nothing open and may be used from several threads."""

    async def prepare(self) -> None:
        """Fetch what Airflow hands out over its event loop, before other methods are called from threads.

        In a triggerer; elsewhere the other methods fetch it themselves.

        Raises:
            InvalidSettings: Airflow does not have it.
        """
        return

    @abstractmethod
    def claim(self, spec: RunSpec, owner: str, *, fresh: bool = False) -> Claim:
        """Create the run, or adopt the one of this name; idempotent, and atomic against other claims.

        A run that is ending (somebody has cancelled it) is waited for and then replaced. A run that succeeded and
        was never collected is adopted: its result is what this try wants.

        Args:
            spec: of the run to create; an adopted run keeps its own.
            owner: owns the run from now on; who attended it under the owner before finds out.
            fresh: adopt nothing: end a living run first.

        Raises:
            ClusterUnavailable: it could not be created now, or the old one does not end.
            InvalidSettings: this cluster cannot run that spec.
        """

    @abstractmethod
    def plan(self, spec: RunSpec) -> str:
        """What :meth:`claim` would create, for people; creates nothing. Raises InvalidSettings."""

    @abstractmethod
    def find(self, name: str) -> RunRef:
        """The present incarnation. Raises RunNotFound."""

    @abstractmethod
    def spec(self, ref: RunRef) -> RunSpec:
        """As created. Raises RunNotFound."""

    @abstractmethod
    def owner(self, ref: RunRef) -> str:
        """Whose it is. Raises RunNotFound."""

    @abstractmethod
    def status(self, ref: RunRef) -> Status:
        """How it is doing. Raises RunNotFound.

        ``pending`` until the launcher has spoken; failed with ``launcher_lost`` when the launcher is gone without a
        final status.
        """

    @abstractmethod
    def size(self, ref: RunRef) -> int:
        """Workers asked for. Raises RunNotFound."""

    @abstractmethod
    def set_size(self, ref: RunRef, workers: int, request: str) -> bool:
        """Ask for another number of workers, once.

        Args:
            ref: of the run.
            workers: wanted, within the run's bounds.
            request: names the wish; the same wish is carried out at most once per incarnation, so that a repeated
                call does not undo what others have asked for since.

        Returns:
            Whether this call changed something: False when the request was carried out before.

        Raises:
            InvalidSettings: outside the run's bounds.
            RunNotFound: no such run.
        """

    @abstractmethod
    def reclaim(self, ref: RunRef, worker: str, grace: timedelta) -> datetime:
        """Send a reclaim notice to a worker, as a cloud would: a drill.

        Returns:
            The deadline in the notice.

        Raises:
            InvalidSettings: the run has no such worker.
            RunNotFound: no such run.
        """

    @abstractmethod
    def cancel(self, ref: RunRef, reason: str, owner: str) -> None:
        """Ask the run to end, and return without waiting; its documents stay. Harmless when repeated or over.

        Raises:
            OwnershipLost: somebody else owns the run.
        """

    @abstractmethod
    def delete(self, ref: RunRef, owner: str) -> None:
        """End the run if it is alive, and remove all of it but its checkpoints. Harmless when it is gone.

        Raises:
            OwnershipLost: somebody else owns the run.
            ClusterUnavailable: it does not end.
        """

    @abstractmethod
    def collect(self, ref: RunRef, owner: str) -> None:
        """Note that the result has been taken: the next claim replaces the run instead of adopting its result.

        Raises:
            OwnershipLost: somebody else owns the run.
        """

    @abstractmethod
    def renew_lease(self, ref: RunRef, token: str) -> None:
        """Tell the run that somebody still waits for it.

        Raises:
            OwnershipLost: somebody else attends the run, or is about to.
            RunNotFound: no such run.
        """

    @abstractmethod
    def take_log_lease(self, ref: RunRef, owner: str) -> LogLease:
        """Become the one who streams the log; who did before finds out in :meth:`advance`.

        Raises:
            OwnershipLost: somebody else owns the run.
            RunNotFound: no such run.
        """

    @abstractmethod
    def advance(self, ref: RunRef, token: str, cursor: str) -> None:
        """Note that the log has been streamed up to ``cursor``, and that somebody still waits, as :meth:`renew_lease`.

        Raises:
            OwnershipLost: somebody else attends the run.
            RunNotFound: no such run.
        """

    @abstractmethod
    def log_lease_holder(self, ref: RunRef) -> str | None:
        """Token of the present log_lease. Raises RunNotFound."""

    @abstractmethod
    def watch(self, ref: RunRef, cursor: str | None, beat: float) -> AsyncGenerator[Update, None]:
        """Updates until the run is over; the last one is its final status, after the last line of its log.

        Args:
            ref: of the run.
            cursor: where to begin in the log; None: no log at all.
            beat: seconds of silence after which a :class:`Quiet` comes.

        Raises:
            RunNotFound: the run is gone.
            ClusterUnavailable: watch again, later, from the last cursor.
        """


def check_size(workers: int, bounds: WorkersSpec) -> None:
    """Raises InvalidSettings when a run with these bounds cannot have so many workers."""
    if not bounds.minimum <= workers <= bounds.maximum:
        raise InvalidSettings(
            "workers",
            f"{workers} is outside the training's bounds {bounds.minimum} to {bounds.maximum}",
            "Ask for a number within them, or widen workers.min and workers.max of the training",
        )


def differing(old: RunSpec, new: RunSpec) -> tuple[str, ...]:
    """Names of the settings in which an adopted run differs from what is asked for now."""
    names = ("command", "workers", "recovery", "environment", "working_directory", "warm")
    found = [name for name in names if getattr(old, name) != getattr(new, name)]
    if _store(old) != _store(new):
        found.append("checkpoint")
    return tuple(found)


def _store(spec: RunSpec) -> tuple[str, float, int] | None:
    where = spec.checkpoint
    return None if where is None else (where.uri, where.every, where.keep)
