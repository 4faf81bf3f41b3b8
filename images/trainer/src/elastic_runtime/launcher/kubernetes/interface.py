"""What the launcher asks of Kubernetes: few calls, plain JSON objects, errors of :mod:`elastic_runtime.errors`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

Object = Mapping[str, Any]
"""As Kubernetes serves it."""


class Kind(StrEnum):
    """Of the objects that a launcher deals with; the value is the resource's name, as access rules have it."""

    CONFIG_MAP = "configmaps"
    REPLICA_SET = "replicasets"
    POD = "pods"
    EVENT = "events"
    NODE = "nodes"


@dataclass(frozen=True, slots=True)
class Selector:
    """Which objects of a kind, in the namespace."""

    labels: str = ""
    fields: str = ""


@dataclass(frozen=True, slots=True)
class Listing:
    """All objects that a selector selects, at one moment."""

    objects: tuple[Object, ...]
    version: str
    """From which a watch goes on."""


class ChangeKind(StrEnum):
    """What has become of an object, in Kubernetes' words."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"
    """Nothing; but the version is newer."""


@dataclass(frozen=True, slots=True)
class Change:
    """One event of a watch."""

    kind: ChangeKind
    object: Object

    @property
    def version(self) -> str:
        """From which a watch goes on after this."""
        return version_of(self.object)


class Api(Protocol):
    """One namespace at an API server.

    Every method raises

    * MissingRight: access rules do not allow it (403),
    * RunNotFound: there is no such object (404),
    * Conflict: the object is not the one, or not in the version, that the call was made for (409),
    * ClusterUnavailable: no answer, or one that says to try again (401, 429, 5xx),
    * PermanentError: anything else that is refused.
    """

    async def read(self, kind: Kind, name: str) -> Object:
        """One object."""

    async def list(self, kind: Kind, selector: Selector) -> Listing:
        """Those selected."""

    def watch(self, kind: Kind, selector: Selector, version: str) -> AbstractAsyncContextManager[AsyncIterator[Change]]:
        """What becomes of those selected, after ``version``; entered once the server has said yes.

        The iterator ends when the server ends the watch, as it does every few minutes; so does the context raise what
        goes wrong meanwhile.

        Raises:
            WatchExpired: the version is too old.
        """

    async def patch(self, kind: Kind, name: str, changes: Object) -> Object:
        """Apply a JSON merge patch (RFC 7386). Returns the object as it is then.

        With ``metadata.uid`` and ``metadata.resourceVersion`` in it, it is a Conflict unless they are the object's.
        """

    async def scale(self, name: str, replicas: int) -> None:
        """Set the size of a ReplicaSet."""

    async def delete(self, kind: Kind, name: str, uid: str, version: str | None = None) -> None:
        """Delete it, and what it owns before it; a Conflict unless these are its uid and version (None: any)."""


def name_of(thing: Object) -> str:
    """Its name."""
    return str(thing["metadata"]["name"])


def uid_of(thing: Object) -> str:
    """Unique over space and time."""
    return str(thing["metadata"]["uid"])


def version_of(thing: Object) -> str:
    """Its resourceVersion."""
    return str(thing["metadata"]["resourceVersion"])


def node_of(pod: Object) -> str:
    """Name of the node that a pod is on; empty while it is on none."""
    return str((pod.get("spec") or {}).get("nodeName") or "")


def labels_of(thing: Object) -> Mapping[str, str]:
    """Its labels."""
    found: Mapping[str, str] = thing["metadata"].get("labels") or {}
    return found


def annotations_of(thing: Object) -> Mapping[str, str]:
    """Its annotations."""
    found: Mapping[str, str] = thing["metadata"].get("annotations") or {}
    return found
