"""Client of an API server: get, list, watch, create, patch, delete. This project has no other.

Every method raises the errors of :mod:`elastic_runtime.kubernetes.errors`, after as many attempts as
:mod:`elastic_runtime.kubernetes.retry` makes.
"""

from __future__ import annotations

import json
import random
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic

from elastic_runtime.errors import RunNotFound, WatchExpired
from elastic_runtime.kubernetes.errors import translate
from elastic_runtime.kubernetes.objects import Json
from elastic_runtime.kubernetes.resources import Kind, V, kind_of
from elastic_runtime.kubernetes.transport import ANYTHING, METADATA, Request, Transport
from elastic_runtime.net.framing import LineSplitter

PAGE = 500
"""Objects that a list asks for at once."""
WATCH_SECONDS = (240, 360)
"""For how long the server is asked to keep one watch open; drawn at random, so that not all begin anew at once."""
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_SIGNING_KEYS = "/openid/v1/jwks"
_LONGEST_EVENT = 4 << 20
"""Bytes; etcd takes no object larger than 1.5 MiB, and JSON in JSON grows by its quotes."""


class ChangeKind(StrEnum):
    """Kind of change of an object, in Kubernetes' words."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"
    """Nothing; but the version is newer."""


@dataclass(frozen=True, slots=True)
class Change(Generic[V]):
    """One event of a watch."""

    kind: ChangeKind
    object: V


@dataclass(frozen=True, slots=True)
class Listing(Generic[V]):
    """All objects that match, at one moment."""

    objects: list[V]
    version: str
    """From which a watch goes on."""


class Client:
    """One namespace of one API server, in one event loop.

    Args:
        transport: to the server; may be shared.
        namespace: of all objects that are in one.
    """

    def __init__(self, transport: Transport, namespace: str) -> None:
        self._transport = transport
        self.namespace = namespace

    async def get(self, kind: Kind[V], name: str, part: str | None = None) -> V:
        """Raises RunNotFound when it is not there."""
        return kind.view(await self._ask("GET", kind, name, part))

    async def find(self, kind: Kind[V], name: str, part: str | None = None) -> V | None:
        """None when it is not there."""
        try:
            return await self.get(kind, name, part)
        except RunNotFound:
            return None

    async def list(self, kind: Kind[V], labels: str = "", fields: str = "", *, metadata: bool = False) -> list[V]:
        """All that match both selectors; with ``metadata``, no more of each than that."""
        return (await self.listing(kind, labels, fields, metadata=metadata)).objects

    async def listing(self, kind: Kind[V], labels: str = "", fields: str = "", *, metadata: bool = False) -> Listing[V]:
        """The same, to be watched from there."""
        found: list[V] = []
        query = {"limit": str(PAGE), "labelSelector": labels, "fieldSelector": fields}
        while True:
            page = await self._ask("GET", kind, query=query, accept=METADATA if metadata else ANYTHING)
            found += map(kind.view, page.get("items") or ())
            if not (following := page["metadata"].get("continue")):
                return Listing(found, str(page["metadata"]["resourceVersion"]))
            query["continue"] = following

    async def create(self, kind: Kind[V], manifest: Json) -> V:
        """Create the object. Raise AlreadyExists."""
        what = self._what("create", kind, manifest["metadata"]["name"])
        request = Request(what, "POST", kind.path(self.namespace), body=manifest)
        return kind.view(await self._transport.ask(request))

    async def patch(self, kind: Kind[V], name: str, changes: Json, part: str | None = None) -> V:
        """JSON merge patch (RFC 7386). Raises Conflict when it has a uid or a resourceVersion that the object has not.

        Returns:
            The object as it is then.
        """
        return kind.view(await self._ask("PATCH", kind, name, part, body=changes))

    async def delete(
        self,
        kind: Kind[Any],
        name: str,
        *,
        uid: str | None = None,
        version: str | None = None,
        propagation: str = "Background",
        grace: int | None = None,
    ) -> None:
        """Ask for its deletion.

        Args:
            kind: of the object.
            name: of the object.
            uid: raise Conflict when it has another one.
            version: raise Conflict when it has another resourceVersion.
            propagation: ``Foreground`` keeps it until all that it owns is gone.
            grace: seconds, for pods; None: the pod's own.
        """
        conditions = {"uid": uid, "resourceVersion": version}
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        body["preconditions"] = {key: value for key, value in conditions.items() if value is not None}
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        await self._ask("DELETE", kind, name, body=body)

    async def try_to_create(self, manifest: Json) -> None:
        """Have the server check an object as if it were created, and make nothing; raises what creating it would."""
        kind = kind_of(manifest)
        request = Request(
            self._what("try to create", kind), "POST", kind.path(self.namespace), {"dryRun": "All"}, manifest
        )
        await self._transport.ask(request)

    async def may(self, group: str, resource: str, verb: str) -> bool:
        """Whether who asks has a right in the namespace.

        Args:
            group: of the API, ``apps``; empty for the core's.
            resource: its plural, perhaps with a part of it: ``pods/log``.
            verb: ``get``, ``create`` and so on.
        """
        plural, _, part = resource.partition("/")
        right = {"group": group, "resource": plural, "subresource": part, "verb": verb}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {"namespace": self.namespace} | right},
        }
        what = f"ask for the right to {verb} {resource} in namespace {self.namespace}"
        answer = await self._transport.ask(Request(what, "POST", _REVIEWS, body=review))
        said = answer.get("status") if isinstance(answer, dict) else None
        return isinstance(said, dict) and said.get("allowed") is True

    async def token_keys(self) -> Json:
        """The public keys that tokens of service accounts are signed with, as a JSON Web Key Set (RFC 7517)."""
        return await self._transport.ask(Request("read the keys of service accounts' tokens", "GET", _SIGNING_KEYS))

    async def serves(self, kind: Kind[Any]) -> bool:
        """Whether the server knows the kind at all."""
        try:
            known = await self._transport.ask(Request(f"look for {kind.group}", "GET", kind.group))
        except RunNotFound:
            return False
        return any(resource["name"] == kind.plural for resource in known["resources"])

    @asynccontextmanager
    async def watch(
        self, kind: Kind[V], version: str, labels: str = "", fields: str = ""
    ) -> AsyncIterator[AsyncIterator[Change[V]]]:
        """Watch the matching objects after ``version``. The block is entered once the server has accepted the watch.

        The iterator ends when the server ends the watch, as it does every few minutes.

        Raises:
            WatchExpired: the version is too old, or an event cannot be read: list again.
        """
        query = {
            "labelSelector": labels,
            "fieldSelector": fields,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(random.randint(*WATCH_SECONDS)),  # noqa: S311  # spreads load, guards nothing
        }
        what = self._what("watch", kind)
        request = Request(what, "GET", kind.path(self.namespace), query)
        async with self._transport.stream(request) as pieces, aclosing(_changes(pieces, kind, what)) as changes:
            yield changes

    def stream(
        self, kind: Kind[Any], name: str, part: str, query: Mapping[str, str]
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Pieces of a part without end (``log``), as they come."""
        what = self._what(f"read the {part} of", kind, name)
        return self._transport.stream(Request(what, "GET", kind.path(self.namespace, name, part), query))

    async def _ask(
        self,
        method: str,
        kind: Kind[Any],
        name: str = "",
        part: str | None = None,
        query: Mapping[str, str] | None = None,
        body: Json | None = None,
        accept: str = ANYTHING,
    ) -> Json:
        verb = method.lower() if name else "list"
        path = kind.path(self.namespace, name, part)
        return await self._transport.ask(Request(self._what(verb, kind, name), method, path, query or {}, body, accept))

    def _what(self, verb: str, kind: Kind[Any], name: str = "") -> str:
        where = f"in namespace {self.namespace}" if kind.namespaced else ""
        return " ".join(word for word in (verb, kind.plural, name, where) if word)


async def _changes(pieces: AsyncIterator[bytes], kind: Kind[V], what: str) -> AsyncGenerator[Change[V]]:
    lines = LineSplitter(_LONGEST_EVENT)
    async for piece in pieces:
        for line in lines.feed(piece):
            yield _change(line, kind, what)


def _change(line: bytes, kind: Kind[V], what: str) -> Change[V]:
    try:
        event = json.loads(line)
        if event["type"] != "ERROR":
            return Change(ChangeKind(event["type"]), kind.view(event["object"]))
        code = int(event["object"].get("code", 500))
    except (ValueError, KeyError, TypeError) as error:
        raise WatchExpired(f"cannot {what}: {line[:100]!r} is not an event of a watch") from error
    raise translate(code, json.dumps(event["object"]), what)
