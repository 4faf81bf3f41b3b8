"""Typed views of what the API server says. Pure; the JSON itself stays at hand as ``raw``.

The clients' own models cost more to build than to use, and their validation refuses what is newer than they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

Json = Mapping[str, Any]
"""JSON of the API server, read into dicts and lists."""


def moment(text: str) -> datetime:
    """A time as Kubernetes writes it."""
    return datetime.fromisoformat(text)


@dataclass(frozen=True, slots=True)
class Condition:
    """One aspect of an object's status."""

    reason: str = ""
    message: str = ""
    holds: bool | None = None
    """None: not known."""
    since: datetime | None = None


@dataclass(frozen=True)
class Object:
    """Typed view of any Kubernetes object, as the API server returned it."""

    raw: Json

    @property
    def metadata(self) -> Json:
        """The object's ``metadata``: name, uid, labels, annotations and so on."""
        found: Json = self.raw["metadata"]
        return found

    @property
    def name(self) -> str:
        """Unique among its kind in its namespace, at one time."""
        return str(self.metadata["name"])

    @property
    def uid(self) -> str:
        """Kubernetes' own: unique over space and time."""
        return str(self.metadata["uid"])

    @property
    def version(self) -> str:
        """Its resourceVersion: another one after every change."""
        return str(self.metadata["resourceVersion"])

    @property
    def labels(self) -> Mapping[str, str]:
        """Return the labels, which may be empty."""
        return self.metadata.get("labels") or {}

    @property
    def annotations(self) -> Mapping[str, str]:
        """Return the annotations, which may be empty."""
        return self.metadata.get("annotations") or {}

    @property
    def created(self) -> datetime:
        """Time of creation, by the API server's clock."""
        return moment(self.metadata["creationTimestamp"])

    @property
    def deadline(self) -> datetime | None:
        """When its deletion is due, the grace period included; None: nobody deletes it."""
        text = self.metadata.get("deletionTimestamp")
        return moment(text) if text else None

    @property
    def going(self) -> bool:
        """Whether it is being deleted."""
        return bool(self.metadata.get("deletionTimestamp"))

    @property
    def owners(self) -> set[str]:
        """Uids of the objects that it is deleted with."""
        return {owner["uid"] for owner in self.metadata.get("ownerReferences") or ()}

    @property
    def data(self) -> Mapping[str, str]:
        """Data of a ConfigMap, which may be empty."""
        return self.raw.get("data") or {}

    @property
    def spec(self) -> Json:
        """Spec of the object, which may be empty."""
        return self.raw.get("spec") or {}

    @property
    def status(self) -> Json:
        """Status of the object, which may be empty."""
        return self.raw.get("status") or {}

    def condition(self, kind: str) -> Condition:
        """Return a condition of its status. Empty: it is not reported."""
        for found in self.status.get("conditions") or ():
            if found["type"] == kind:
                holds = {"True": True, "False": False}.get(found.get("status", ""))
                since = found.get("lastTransitionTime")
                return Condition(
                    found.get("reason") or "", found.get("message") or "", holds, moment(since) if since else None
                )
        return Condition()


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a container does not run yet, or again."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Ended:
    """Exit of a container: its code, and the reason and message that the kubelet recorded."""

    code: int | None
    reason: str
    message: str
    at: datetime | None


@dataclass(frozen=True, slots=True)
class Container:
    """The status of one container."""

    raw: Json

    @property
    def name(self) -> str:
        """Name, as in the pod's spec."""
        return str(self.raw.get("name", ""))

    @property
    def running(self) -> bool:
        """Whether the container runs now."""
        return "running" in (self.raw.get("state") or {})

    @property
    def waiting(self) -> Waiting | None:
        """None when it does not wait."""
        found = (self.raw.get("state") or {}).get("waiting")
        return Waiting(found.get("reason") or "", found.get("message") or "") if found is not None else None

    @property
    def ended(self) -> Ended | None:
        """Exit of the container. None while it runs or waits."""
        return _ended((self.raw.get("state") or {}).get("terminated"))

    @property
    def ended_before(self) -> Ended | None:
        """How it ended the last time, before it was started again."""
        return _ended((self.raw.get("lastState") or {}).get("terminated"))


def _ended(found: Json | None) -> Ended | None:
    if found is None:
        return None
    at = found.get("finishedAt")
    return Ended(
        found.get("exitCode"), found.get("reason") or "", found.get("message") or "", moment(at) if at else None
    )


@dataclass(frozen=True)
class Pod(Object):
    """A view of a pod."""

    @property
    def node(self) -> str:
        """Name of the node that it is on; empty while it is on none."""
        return str(self.spec.get("nodeName") or "")

    @property
    def phase(self) -> str:
        """Phase of the pod, as Kubernetes names it. Empty before it has one."""
        return str(self.status.get("phase") or "")

    @property
    def over(self) -> bool:
        """Whether all its containers have ended for good."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def stopped(self) -> bool:
        """Whether nothing runs in it any more, nor will; the pod itself may take its time to be removed."""
        return self.over or (self.going and not any(each.running for each in self.containers))

    @property
    def containers(self) -> tuple[Container, ...]:
        """Those that Kubernetes says something of, its init containers first."""
        return tuple(self._containers())

    def container(self, name: str) -> Container | None:
        """One of those that are no init containers."""
        found = self.status.get("containerStatuses") or ()
        return next((Container(each) for each in found if each["name"] == name), None)

    def _containers(self) -> Iterator[Container]:
        for key in ("initContainerStatuses", "containerStatuses"):
            yield from map(Container, self.status.get(key) or ())


@dataclass(frozen=True)
class Node(Object):
    """A machine that pods run on."""

    @property
    def taints(self) -> set[str]:
        """Return the keys of the node's taints."""
        return {str(taint["key"]) for taint in self.spec.get("taints") or ()}


@dataclass(frozen=True)
class Event(Object):
    """Event that a component of Kubernetes reports about an object."""

    @property
    def about(self) -> str:
        """Uid of the object that the event is about. Empty if it is not recorded."""
        return str((self.raw.get("involvedObject") or {}).get("uid", ""))

    @property
    def warning(self) -> bool:
        """Whether the event has the type Warning."""
        return self.raw.get("type") == "Warning"

    @property
    def reason(self) -> str:
        """Return the reason, in one word."""
        return str(self.raw.get("reason") or "")

    @property
    def message(self) -> str:
        """Return the message for users."""
        return str(self.raw.get("message") or "")

    @property
    def count(self) -> int:
        """How often the event has occurred."""
        return int(self.raw.get("count") or 1)

    @property
    def first(self) -> datetime | None:
        """Time of the first occurrence."""
        text = self.raw.get("firstTimestamp")
        return moment(text) if text else None

    @property
    def last(self) -> str:
        """Time of the last occurrence, as text that sorts. Empty if it is not recorded."""
        return str(self.raw.get("lastTimestamp") or self.raw.get("eventTime") or "")
