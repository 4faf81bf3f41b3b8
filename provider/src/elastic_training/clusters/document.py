"""Document of a run beside its status: its owner, the process that streams its log, and requests. Pure.

A :class:`RunDocument` is as it was read; its methods make the one that it shall become, or refuse. Who may do what is
decided here and nowhere else; a place only sees to it that nobody has changed a document since it was read.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Self

from elastic_runtime.documents import from_plain
from elastic_runtime.errors import InvalidDocument, OwnershipLost
from elastic_runtime.run.headline import Headline
from elastic_runtime.run.spec import RunSpec
from elastic_training.clusters.types import LOG_START, RunRef, RunSummary

NOBODY = ""
"""Token of a log lease that was revoked: the run has a new owner, who does not watch it yet."""
MAX_REQUESTS = 100
"""Requests for a size that are remembered, the newest."""


@dataclass(frozen=True, slots=True)
class StoredLogLease:
    """Who streams a run's log, and how far it has come."""

    token: str
    cursor: str
    told: str = ""
    """How much of what happened was told to whoever listens; opaque."""


@dataclass(frozen=True, slots=True)
class SizeRequest:
    """A wish for a size, as it was understood when it was first heard."""

    name: str
    workers: int = 0
    """The size that it came to; 0 in documents that only have names."""
    asked: datetime | None = None
    done: bool = True
    """Whether the size was set, once; until then it is to be set to exactly this, whatever is asked for by then."""
    by: str = ""
    """Who has asked, for people; empty: not known."""


def read_requests(plain: object) -> tuple[SizeRequest, ...]:
    """From a document. Raises InvalidDocument."""
    if not isinstance(plain, list | tuple):
        raise InvalidDocument(f"the requests for sizes are not a list: {plain!r}"[:400])
    return tuple(SizeRequest(each) if isinstance(each, str) else from_plain(SizeRequest, each) for each in plain)


@dataclass(frozen=True, slots=True)
class RunDocument:
    """One incarnation of a run, as it was read."""

    spec: RunSpec
    """Spec as created. It never changes."""
    owner: str
    """Opaque text: the try of the task that the run works for."""
    created: datetime
    renewed: datetime
    """When somebody has last said that the run is waited for."""
    cancelled: str | None = None
    """The reason, once somebody asked for the end."""
    collected: bool = False
    """Whether the result has been taken."""
    log_lease: StoredLogLease | None = None
    """None until somebody has begun to stream the log."""
    requests: tuple[SizeRequest, ...] = ()
    """Requests for a size, the newest last."""
    stacks: str | None = None
    """The last request for the ranks' stacks; None: nobody has asked."""
    complete: bool = True
    """Whether all of the run was created; until then its creator is at work, or has died."""
    going: bool = False
    """Whether it is being removed, which cannot be taken back."""
    version: Any = field(default=None, compare=False)
    """The place's own: tells whether it has been changed since."""

    @property
    def ref(self) -> RunRef:
        """Which run, and which incarnation of it."""
        return RunRef(self.spec.name, self.spec.uid)

    def summary(self, status: Headline) -> RunSummary:
        """With how it is doing, for a list."""
        return RunSummary(self.ref, self.owner, self.created, status)

    @property
    def token(self) -> str | None:
        """Token of the present log lease. None: there was none."""
        return self.log_lease.token if self.log_lease else None

    @property
    def cursor(self) -> str:
        """How far the log has been streamed."""
        return self.log_lease.cursor if self.log_lease else LOG_START

    @property
    def told(self) -> str:
        """How much of what happened was told; opaque."""
        return self.log_lease.told if self.log_lease else ""

    @property
    def watched(self) -> bool:
        """Whether somebody has begun to watch it for its present owner."""
        return bool(self.token)

    def adopted(self, owner: str, now: datetime) -> Self:
        """With a new owner; the watcher of the owner before it finds out."""
        revoked = self.log_lease and StoredLogLease(NOBODY, self.cursor, self.told)
        return replace(self, owner=owner, renewed=now, log_lease=revoked)

    def asked_to_end(self, reason: str) -> Self:
        """With the first reason that anybody gave."""
        return self if self.cancelled is not None else replace(self, cancelled=reason)

    def taken(self, owner: str) -> Self:
        """With its result collected. Raises OwnershipLost."""
        self.check_owner(owner)
        return replace(self, collected=True)

    def leased(self, owner: str, token: str, now: datetime) -> Self:
        """With a new log lease, which goes on where the last one stopped. Raises OwnershipLost."""
        self.check_owner(owner)
        return replace(self, log_lease=StoredLogLease(token, self.cursor, self.told), renewed=now)

    def kept(self, token: str, now: datetime, cursor: str | None = None, told: str | None = None) -> Self:
        """With its leases renewed by the one who holds the log's.

        Args:
            token: of the log lease.
            now: the present time.
            cursor: how far the log has been streamed; None: no further than before.
            told: how much of what happened was told; None: no more than before.

        Raises:
            OwnershipLost: somebody else holds the log lease, or is about to.
        """
        if self.token != token or not token:
            raise OwnershipLost(f"somebody else watches the run {self.spec.name} now")
        place = (self.cursor if cursor is None else cursor, self.told if told is None else told)
        return replace(self, log_lease=StoredLogLease(token, *place), renewed=now)

    def requested(self, name: str) -> SizeRequest | None:
        """Return what is known of a request for a size."""
        return next((each for each in self.requests if each.name == name), None)

    def asked_for(self, request: SizeRequest) -> Self:
        """With a request for a size; with what it was understood as before, if there is one of that name."""
        if self.requested(request.name):
            return self
        return replace(self, requests=(*self.requests, request)[-MAX_REQUESTS:])

    def resized(self, name: str) -> Self:
        """With that request carried out."""
        done = (replace(each, done=True) if each.name == name else each for each in self.requests)
        return replace(self, requests=tuple(done))

    def check_owner(self, owner: str) -> None:
        """Raises OwnershipLost when somebody else owns the run."""
        if self.owner != owner:
            raise OwnershipLost(f"the run {self.spec.name} belongs to {self.owner} now")
