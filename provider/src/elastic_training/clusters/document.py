"""Document of a run beside its status: its owner, the process that streams its log, and requests. Pure.

A :class:`RunDocument` is as it was read; its methods make the one that it shall become, or refuse. Who may do what is
decided here and nowhere else; a place only sees to it that nobody has changed a document since it was read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Self

from elastic_runtime.documents import from_plain
from elastic_runtime.errors import InvalidDocument, InvalidSettings, OwnershipLost
from elastic_runtime.marks import SPARSE
from elastic_runtime.run.headline import Headline
from elastic_runtime.run.join import OfferedToken, OfferedTokens
from elastic_runtime.run.spec import RunSpec, WorkersSpec
from elastic_training.clusters.types import LOG_START, RunRef, RunSummary

NOBODY = ""
"""Token of a log lease that was revoked: the run has a new owner, who does not watch it yet."""
MAX_REQUESTS = 100
"""Requests for a size that are remembered, the newest."""
MAX_RELEASED = 100
"""Workers that one request may name."""
_REMEDY = 'Write a whole number, 0 to pause the training, a change as in "+2" or "-1", "min", or "max"'
_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class StoredLogLease:
    """Who streams a run's log, and how far it has come."""

    token: str
    cursor: str
    told: str = ""
    """How much of what happened was told to whoever listens; opaque."""


@dataclass(frozen=True, slots=True)
class SizeRequest:
    """A request for a size: as somebody makes it, and then, with the run, what it came to when it was first heard."""

    name: str
    """Carried out at most once per incarnation of the run."""
    size: str = field(default="", metadata=SPARSE)
    """``"3"``, ``"+2"``, ``"-1"``, ``"min"`` or ``"max"``; empty once it is known what that came to."""
    clip: bool = field(default=False, metadata=SPARSE)
    """Take the nearer bound for what is outside the training's bounds, instead of refusing it."""
    release: tuple[str, ...] = field(default=(), metadata=SPARSE)
    """Workers that go, without replacement; then ``size`` is minus their number."""
    pause: bool = field(default=False, metadata=SPARSE)
    """Give up all workers once the state is durable, until somebody resumes the run; ``size`` is empty."""
    resume: bool = field(default=False, metadata=SPARSE)
    """End a pause; with an empty ``size``, with as many workers as before it."""
    workers: int = 0
    """The size that it came to; of a pause, the one to go back to. 0 in documents that only have names."""
    asked: datetime | None = None
    done: bool = True
    """Whether the size was set, once; until then it is to be set to exactly this, whatever is asked for by then."""
    by: str = ""
    """Who has asked, for people; empty: not known."""

    @property
    def relative(self) -> bool:
        """Whether it counts from the size that is asked for at present, so that asking twice would count twice."""
        return self.size[:1] in ("+", "-")

    def target(self, present: int, bounds: WorkersSpec) -> int:
        """Workers to ask for; of a pause, those to go back to.

        Args:
            present: that are asked for now; of a run that is paused, those to go back to.
            bounds: of the training.

        Raises:
            InvalidSettings: outside the bounds, and not to be clipped.
        """
        match self.size:
            case "":
                return present
            case "min":
                return bounds.minimum
            case "max":
                return bounds.maximum
        workers = present + int(self.size) if self.relative else int(self.size)
        if self.clip:
            return min(max(workers, bounds.minimum), bounds.maximum)
        if bounds.minimum <= workers <= bounds.maximum:
            return workers
        sum_ = f"{present} {self.size[0]} {self.size[1:]} = " if self.relative else ""
        raise InvalidSettings(
            "release" if self.release else "workers",
            f"{sum_}{workers} is outside the training's bounds {bounds.minimum} to {bounds.maximum}",
            "Ask for a number within them, write clip=True to stop at the nearer one, or widen workers.min and "
            "workers.max of the training",
        )


def size_request(
    workers: object, release: object = None, *, clip: bool = False, name: str = "", by: str = ""
) -> SizeRequest:
    """Parse a size or names of workers, as a user wrote them, after rendering. Raise InvalidSettings."""
    if (workers is None) == (release is None):
        raise InvalidSettings("workers", "give exactly one of workers and release", "Write one of the two")
    if release is not None:
        names = released_names(release)
        return SizeRequest(name, f"-{len(names)}", clip, names, by=by)
    if isinstance(workers, bool) or not isinstance(workers, int | str):
        raise InvalidSettings("workers", f"{workers!r} is not a size", _REMEDY)
    size = str(workers).strip()
    if size == "0":
        return SizeRequest(name, pause=True, by=by)
    if isinstance(workers, int) and workers < 0:
        raise InvalidSettings("workers", f"{workers} is less than 0", _REMEDY)
    if size not in ("min", "max") and not re.fullmatch(r"[+-]?[0-9]{1,6}", size):
        raise InvalidSettings("workers", f"{size!r} is not a size", _REMEDY)
    if size not in ("min", "max") and int(size) == 0:
        raise InvalidSettings("workers", f"{size} is not a change of a size", _REMEDY)
    return SizeRequest(name, size, clip, by=by)


def resume_request(workers: object = None, *, name: str = "", by: str = "") -> SizeRequest:
    """Parse the size to go on with after a pause; None: that before the pause. Raise InvalidSettings."""
    if workers is None:
        return SizeRequest(name, resume=True, by=by)
    wanted = size_request(workers, name=name, by=by)
    if wanted.pause or wanted.relative:
        problem = f"{workers!r} is not a size to go on with"
        raise InvalidSettings("workers", problem, 'Write a whole number of 1 or more, "min", or "max"')
    return replace(wanted, resume=True)


def released_names(release: object) -> tuple[str, ...]:
    """Check a list of workers to release, and return it as a tuple. Raise InvalidSettings."""
    remedy = 'Write a list of names, as in ["worker-3"]'
    if isinstance(release, str) or not isinstance(release, Sequence) or not 0 < len(release) <= MAX_RELEASED:
        raise InvalidSettings("release", f"{release!r} is not a list of 1 to {MAX_RELEASED} names", remedy)
    for name in release:
        # It becomes the name of a file, or of a pod.
        if not isinstance(name, str) or not is_worker_name(name):
            raise InvalidSettings("release", f"{name!r} is not a worker's name", remedy)
    if len(set(release)) < len(release):
        raise InvalidSettings("release", f"{list(release)!r} names a worker twice", remedy)
    return tuple(release)


def is_worker_name(name: str) -> bool:
    """Whether a worker can be called so, as a pod, or after its agent has connected again."""
    return _NAME.fullmatch(name) is not None


def read_requests(plain: object) -> tuple[SizeRequest, ...]:
    """Parse the size requests of a document. Raise InvalidDocument."""
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
    tokens: OfferedTokens = field(default_factory=OfferedTokens)
    """With which machines may join, where the place keeps them here."""
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
        """Return an entry for a list of runs, with the given headline of the run's status."""
        pool = self.spec.pool.name if self.spec.pool else ""
        return RunSummary(self.ref, self.owner, self.created, status, pool)

    @property
    def token(self) -> str | None:
        """Token of the present log lease. None: there was none."""
        return self.log_lease.token if self.log_lease else None

    @property
    def cursor(self) -> str:
        """Position up to which the log has been streamed. Opaque."""
        return self.log_lease.cursor if self.log_lease else LOG_START

    @property
    def told(self) -> str:
        """Changes that were reported to callbacks and metrics so far. Opaque."""
        return self.log_lease.told if self.log_lease else ""

    @property
    def watched(self) -> bool:
        """Whether somebody has begun to watch it for its present owner."""
        return bool(self.token)

    def adopted(self, owner: str, now: datetime) -> Self:
        """Return the document with a new owner. The log lease is revoked, so the previous owner's watcher stops."""
        revoked = self.log_lease and StoredLogLease(NOBODY, self.cursor, self.told)
        return replace(self, owner=owner, renewed=now, log_lease=revoked)

    def asked_to_end(self, reason: str) -> Self:
        """Return the document with a request to end. The first reason stays."""
        return self if self.cancelled is not None else replace(self, cancelled=reason)

    def taken(self, owner: str) -> Self:
        """Return the document with its result marked as collected. Raise OwnershipLost."""
        self.check_owner(owner)
        return replace(self, collected=True)

    def leased(self, owner: str, token: str, now: datetime) -> Self:
        """Return the document with a new log lease, which continues at the cursor. Raise OwnershipLost."""
        self.check_owner(owner)
        return replace(self, log_lease=StoredLogLease(token, self.cursor, self.told), renewed=now)

    def kept(self, token: str, now: datetime, cursor: str | None = None, told: str | None = None) -> Self:
        """Return the document with both leases renewed by the holder of the log lease.

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

    @property
    def pause(self) -> SizeRequest | None:
        """The request for a pause that nobody has ended. None: there is none."""
        newest = self.requests[-1] if self.requests else None
        return newest if newest is not None and newest.pause else None

    def asked_for(self, request: SizeRequest) -> Self:
        """Return the document with a size request. An earlier request of the same name stays as it is."""
        if self.requested(request.name):
            return self
        return replace(self, requests=(*self.requests, request)[-MAX_REQUESTS:])

    def resized(self, name: str) -> Self:
        """Return the document with the request of that name marked as done."""
        done = (replace(each, done=True) if each.name == name else each for each in self.requests)
        return replace(self, requests=tuple(done))

    def with_token(self, token: OfferedToken, now: datetime) -> Self:
        """Return the document with another token to join. Raise Conflict if there are too many."""
        return replace(self, tokens=self.tokens.and_one(token, now))

    def check_owner(self, owner: str) -> None:
        """Raise OwnershipLost if another try owns the run."""
        if self.owner != owner:
            raise OwnershipLost(f"the run {self.spec.name} belongs to {self.owner} now")
