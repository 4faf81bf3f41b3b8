"""The root of a run: a ConfigMap whose annotations say who owns the run, who watches it, and what was asked of it.

Between it and a :class:`~elastic_training.clusters.document.RunDocument`: pure.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

from elastic_runtime.documents import from_json, parse_json, time_to_text, to_json, to_plain
from elastic_runtime.errors import InvalidDocument
from elastic_runtime.kubernetes.objects import Object, moment
from elastic_runtime.run import runobjects
from elastic_runtime.run.join import OfferedTokens
from elastic_runtime.run.spec import RunSpec
from elastic_training.clusters.document import RunDocument, SizeRequest, StoredLogLease, read_requests


@dataclass(frozen=True, slots=True)
class RootVersion:
    """The :attr:`~RunDocument.version` of a document: of which object, and as of when."""

    uid: str
    """Kubernetes' own; the run's is in its spec."""
    resource_version: str
    pods: str | None
    """Digest of the run's pods, by :func:`~elastic_training.clusters.kubernetes.manifests.objects.pods_digest`."""


def of_run(thing: Object, uid: str | None = None) -> bool:
    """Whether it is the root of a run, or of this incarnation of it."""
    mine = thing.labels.get(runobjects.MANAGED_BY_LABEL) == runobjects.PREFIX
    return mine and uid in (None, thing.labels.get(runobjects.UID_LABEL))


def document(thing: Object) -> RunDocument:
    """Return the run document in a root. Raise InvalidDocument."""
    marks = thing.annotations
    log_lease = marks.get(runobjects.LOG_LEASE)
    return RunDocument(
        spec=_spec(_text(thing)),
        owner=marks.get(runobjects.OWNER, ""),
        created=thing.created,
        renewed=_moment(marks[runobjects.LEASE]) if runobjects.LEASE in marks else thing.created,
        cancelled=marks.get(runobjects.CANCEL),
        collected=runobjects.COLLECTED in marks,
        log_lease=None if log_lease is None else from_json(StoredLogLease, log_lease),
        requests=_requests(marks.get(runobjects.REQUESTS, "[]")),
        stacks=marks.get(runobjects.STACKS),
        tokens=_tokens(marks.get(runobjects.JOIN_TOKENS)),
        complete=runobjects.COMPLETE in marks,
        going=thing.going,
        version=RootVersion(thing.uid, thing.version, marks.get(runobjects.PODS)),
    )


def difference(found: RunDocument, wanted: RunDocument) -> dict[str, str | None]:
    """Annotations to set, so that a root that says the one says the other; None removes one."""
    before = _annotations(found)
    return {key: value for key, value in _annotations(wanted).items() if value != before[key]}


def _annotations(document: RunDocument) -> dict[str, str | None]:
    return {
        runobjects.OWNER: document.owner,
        runobjects.LEASE: time_to_text(document.renewed),
        runobjects.CANCEL: document.cancelled,
        runobjects.COLLECTED: "" if document.collected else None,
        runobjects.LOG_LEASE: to_json(document.log_lease) if document.log_lease else None,
        runobjects.WATCHED: "" if document.watched else None,
        runobjects.REQUESTS: json.dumps(to_plain(document.requests), separators=(",", ":")),
        runobjects.STACKS: document.stacks,
        runobjects.JOIN_TOKENS: to_json(document.tokens) if document.tokens.tokens else None,
        runobjects.COMPLETE: "" if document.complete else None,
    }


def _requests(text: str) -> tuple[SizeRequest, ...]:
    try:
        return read_requests(parse_json(text))
    except ValueError as error:
        raise InvalidDocument(f"the annotation {runobjects.REQUESTS} cannot be read: {error}") from error


def _tokens(text: str | None) -> OfferedTokens:
    """None of what cannot be read, as for the launcher: who joins has to get another."""
    try:
        return OfferedTokens() if text is None else from_json(OfferedTokens, text)
    except InvalidDocument:
        return OfferedTokens()


def _moment(text: str) -> datetime:
    try:
        found = moment(text)
        if found.tzinfo is None:
            raise ValueError("it has no time zone")
        return found.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise InvalidDocument(f"the annotation {runobjects.LEASE} is not a time: {error}") from error


def _text(thing: Object) -> str:
    try:
        return thing.data[runobjects.SPEC_KEY]
    except KeyError:
        raise InvalidDocument(
            f"the ConfigMap {thing.name} holds no {runobjects.SPEC_KEY}: it is not of a run"
        ) from None


@lru_cache(maxsize=4096)
def _spec(text: str) -> RunSpec:
    """It never changes, and is looked at with every change of the root that holds it."""
    return from_json(RunSpec, text)
