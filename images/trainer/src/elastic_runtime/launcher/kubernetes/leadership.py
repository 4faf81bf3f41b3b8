"""One launcher's time in leadership: how it begins, and the fence that keeps the one before from writing any more.

Every launcher of a run begins by writing a :class:`~elastic_runtime.run.runobjects.Term` of its own into the status,
and from then on writes the status only in the version that it has written itself. Kubernetes refuses any other write
(409); whoever finds another's term then has been replaced. Checkpoints have a fence of their own, which the term
carries: see :attr:`~elastic_runtime.run.spec.CheckpointSpec.fence`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeVar

from elastic_runtime.documents import from_json, to_json
from elastic_runtime.errors import Conflict, InvalidDocument, OwnershipLost
from elastic_runtime.kubernetes.client import Client
from elastic_runtime.kubernetes.objects import Object
from elastic_runtime.kubernetes.resources import CONFIG_MAPS
from elastic_runtime.printable import LONG, printable
from elastic_runtime.run import runobjects
from elastic_runtime.run.headline import headline
from elastic_runtime.run.runobjects import HEADLINE, STATUS_KEY, TERM, UID_LABEL, Term
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import Status

log = logging.getLogger(__name__)

ATTEMPTS = 10
"""Writes of the status in a row that may meet a change by somebody else."""


@dataclass(frozen=True, slots=True)
class Door:
    """Where machines may join by hand; nowhere, if it is empty."""

    address: str = ""
    pin: str = ""
    """As :attr:`~elastic_runtime.run.runobjects.Term.pin`."""


NO_DOOR = Door()


def next_term(previous: Term | None, holder: str, spec: RunSpec, now: datetime, door: Door = NO_DOOR) -> Term:
    """The term of the launcher after the one of ``previous``.

    Its fence is larger than any before it: of the launchers before, of the creator's, and of earlier incarnations of
    the run, whose fences were the times of their creation.
    """
    least = spec.checkpoint.fence if spec.checkpoint else 0
    fence = max(previous.fence + 1 if previous else 0, least, int(now.timestamp()))
    number = previous.number + 1 if previous else 1
    return Term(number=number, holder=holder, fence=fence, since=now, address=door.address, pin=door.pin)


def fenced(spec: RunSpec, term: Term) -> RunSpec:
    """Return the spec that ranks get, with the fence."""
    return replace(spec, checkpoint=replace(spec.checkpoint, fence=term.fence)) if spec.checkpoint else spec


def term_of(status: Object) -> Term | None:
    """Who is in leadership; None: nobody yet. Raises InvalidDocument."""
    text = status.annotations.get(TERM)
    return None if text is None else from_json(Term, text)


@dataclass(slots=True)
class Leadership:
    """The right to write the status of a run, until another launcher takes it."""

    term: Term
    _client: Client
    _name: str
    _uid: str
    _version: str

    async def write(self, status: Status) -> None:
        """Replace the status.

        Raises:
            OwnershipLost: another launcher is in leadership, or the run is another one.
            RunNotFound: the run has been deleted.
            RetryableError, MissingRight: as the API server says.
        """
        for _ in range(ATTEMPTS):
            try:
                await self._patch({HEADLINE: to_json(headline(status))}, {STATUS_KEY: fitted(status)})
                return
            except Conflict:
                # Somebody has touched it, or an answer to a write of ours was lost.
                current = await self._client.get(CONFIG_MAPS, self._name)
                if current.uid != self._uid or not self._ours(current):
                    raise OwnershipLost(f"{self._name}: another launcher has taken over") from None
                self._version = current.version
        raise Conflict(f"{self._name} is changed by somebody all the time")

    def _ours(self, current: Object) -> bool:
        found = term_of(current)
        return found is not None and (found.number, found.holder) == (self.term.number, self.term.holder)

    async def _patch(self, annotations: Mapping[str, str], data: Mapping[str, str]) -> None:
        metadata = {"uid": self._uid, "resourceVersion": self._version, "annotations": annotations}
        written = await self._client.patch(CONFIG_MAPS, self._name, {"metadata": metadata, "data": data})
        self._version = written.version


async def take_over(
    client: Client, spec: RunSpec, holder: str, now: Callable[[], datetime], door: Door = NO_DOOR
) -> tuple[Leadership, Status | None]:
    """Enter into leadership. Returns it, and what the launcher before has published last.

    Args:
        client: of the run's namespace.
        spec: of the run.
        holder: uid of this launcher's pod.
        now: wall clock.
        door: of this launcher.

    Raises:
        OwnershipLost: the run of that name is another one by now.
        RunNotFound: it has been deleted.
        RetryableError, MissingRight: as the API server says.
    """
    name = runobjects.ObjectNames(spec.name).status
    for _ in range(ATTEMPTS):
        current = await client.get(CONFIG_MAPS, name)
        if current.labels.get(UID_LABEL) != spec.uid:
            raise OwnershipLost(f"{name} belongs to another incarnation of this run")
        term = next_term(term_of(current), holder, spec, now(), door)
        metadata = {
            "uid": current.uid,
            "resourceVersion": current.version,
            "annotations": {TERM: to_json(term)},
        }
        try:
            written = await client.patch(CONFIG_MAPS, name, {"metadata": metadata})
        except Conflict:
            continue
        log.info("term %d of run %s begins; fence %d", term.number, spec.name, term.fence)
        return Leadership(term, client, name, written.uid, written.version), _published(current)
    raise Conflict(f"{name} is changed by somebody all the time")


def _published(current: Object) -> Status | None:
    text = current.data.get(STATUS_KEY)
    if text is None:
        return None
    try:
        return from_json(Status, text)
    except InvalidDocument as error:
        log.warning("the status of the launcher before cannot be read, and is begun anew: %s", printable(error, LONG))
        return None


async def read_spec(client: Client, run: str, uid: str) -> tuple[RunSpec, Object]:
    """Read the spec, and the root that has it.

    Raises:
        OwnershipLost: the run of that name is another one.
        RunNotFound: it has been deleted.
        InvalidDocument, InvalidSettings: its spec cannot be read, or not be run.
    """
    root = await client.get(CONFIG_MAPS, runobjects.ObjectNames(run).root)
    text = root.data.get(runobjects.SPEC_KEY)
    if text is None:
        raise InvalidDocument(f"ConfigMap {run} has no {runobjects.SPEC_KEY}")
    if _uid_in(text) != uid:
        raise OwnershipLost(f"ConfigMap {run} belongs to another incarnation of this run")
    return from_json(RunSpec, text), root


def _uid_in(text: str) -> object:
    """Of a spec that this runtime may not be able to read."""
    try:
        return json.loads(text).get("uid")
    except (ValueError, AttributeError) as error:
        raise InvalidDocument(f"the run's {runobjects.SPEC_KEY} is not a JSON object: {error}") from error


STATUS_ROOM = 1_000_000
"""Bytes. The values of a ConfigMap may have 1 MiB together."""
_FEW = 16
T = TypeVar("T")


def fitted(status: Status, room: int = STATUS_ROOM) -> str:
    """The status as JSON of at most so many bytes.

    Each of its parts is bounded, and a status of a thousand workers fits. Where names and messages are as long as they
    may be, and of characters that JSON writes as twelve bytes, figures of hardware are left out, then the oldest events
    and worlds, then the other curves, then the workers that are listed first, until it does.
    """
    while len(text := to_json(status)) > room:
        smaller = _smaller(status)
        if smaller == status:
            break
        status = smaller
    return text


def _smaller(status: Status) -> Status:
    if status.hardware:
        return replace(status, hardware={})
    if any(worker.gpus for worker in status.workers):
        return replace(status, workers=tuple(replace(worker, gpus=()) for worker in status.workers))
    if len(status.events) + len(status.history) > _FEW:
        return replace(status, events=_newer(status.events), history=_newer(status.history))
    if status.series or status.metrics:
        return replace(status, series={}, metrics={})
    return replace(status, workers=_newer(status.workers), worker_seconds={})


def _newer(items: tuple[T, ...]) -> tuple[T, ...]:
    return items[(len(items) + 1) // 2 :]
