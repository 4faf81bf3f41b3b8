"""A run in a namespace, as its creator lays it down, and worker pods as a ReplicaSet and kubelets make them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from elastic_runtime.documents import from_json, to_json
from elastic_runtime.kubernetes.client import Client
from elastic_runtime.kubernetes.objects import Object
from elastic_runtime.kubernetes.resources import CONFIG_MAPS, REPLICA_SETS, Kind
from elastic_runtime.launcher.kubernetes.leadership import Leadership, take_over
from elastic_runtime.launcher.kubernetes.platform import KubernetesPlatform
from elastic_runtime.launcher.kubernetes.workers import PodWorkers
from elastic_runtime.run.runobjects import (
    COMPLETE,
    LEASE,
    SPEC_KEY,
    STATUS_KEY,
    ObjectNames,
    Part,
    labels,
)
from elastic_runtime.run.spec import CheckpointSpec, RunSpec, WorkersSpec
from elastic_runtime.run.status import Phase, Status

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
Plain = dict[str, Any]


class Place(Protocol):
    """A namespace in which a test makes things happen."""

    @property
    def api(self) -> Client:
        """As the launcher has it."""

    async def create(self, kind: Kind[Any], manifest: Plain) -> Object: ...

    async def change(self, kind: Kind[Any], name: str, changes: Plain) -> None: ...

    async def remove(self, kind: Kind[Any], name: str) -> None: ...

    async def token(self, pod: str, audience: str) -> str: ...


def spec(name: str = "digits", uid: str = "first", fence: int = 7, **others: Any) -> RunSpec:
    made = RunSpec(name, uid, ("python", "train.py"), WorkersSpec(1, 2, 4), checkpoint=CheckpointSpec("s3://b/r"))
    return replace(made, checkpoint=CheckpointSpec("s3://b/r", fence=fence), **others)


def status(run: RunSpec, phase: Phase = Phase.RUNNING, reason: str = "2 ranks train", **others: Any) -> Status:
    return Status(run.name, run.uid, phase, reason, NOON, **others)


def config_map(run: RunSpec, name: str, part: Part, data: dict[str, str]) -> Plain:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": labels(run.name, run.uid, part)},
        "data": data,
    }


def replica_set(run: RunSpec, replicas: int = 2) -> Plain:
    own = labels(run.name, run.uid, Part.WORKER)
    pod = {"containers": [{"name": "worker", "image": "localhost/none:1"}]}
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": ObjectNames(run.name).worker, "labels": own},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": own},
            "template": {"metadata": {"labels": own}, "spec": pod},
        },
    }


def pod(run: RunSpec, name: str, *, node: str = "", going: datetime | None = None, **pod_status: Any) -> Plain:
    metadata: Plain = {"name": name, "labels": labels(run.name, run.uid, Part.WORKER)}
    if going:
        metadata["deletionTimestamp"] = going.isoformat().replace("+00:00", "Z")
    pod_spec: Plain = {"nodeName": node} if node else {}
    return {"metadata": metadata, "spec": pod_spec, "status": pod_status}


async def lay_down(place: Place, run: RunSpec, *, complete: bool = True, workers: bool = True) -> Object:
    """What the launcher needs of a run; returns the root."""
    names = ObjectNames(run.name)
    root = config_map(run, names.root, Part.ROOT, {SPEC_KEY: to_json(run)})
    root["metadata"]["annotations"] = {LEASE: "one", **({COMPLETE: "yes"} if complete else {})}
    made = await place.create(CONFIG_MAPS, root)
    await place.create(CONFIG_MAPS, config_map(run, names.status, Part.STATUS, {}))
    if workers:
        await place.create(REPLICA_SETS, replica_set(run))
    return made


async def published(place: Place, run: RunSpec) -> Status | None:
    """What readers see."""
    text = (await place.api.get(CONFIG_MAPS, ObjectNames(run.name).status)).data.get(STATUS_KEY)
    return from_json(Status, text) if text else None


@dataclass
class Clock:
    """A wall clock that is told the time."""

    now: datetime = NOON

    def __call__(self) -> datetime:
        return self.now

    def tick(self, seconds: float) -> datetime:
        self.now += timedelta(seconds=seconds)
        return self.now


async def enter(place: Place, run: RunSpec, holder: str = "pod-1", now: datetime = NOON) -> Leadership:
    """Into leadership."""
    return (await take_over(place.api, run, holder, lambda: now))[0]


@dataclass
class Watched:
    """Platform that are open."""

    platform: KubernetesPlatform
    leadership: Leadership
    changes: list[None] = field(default_factory=list)

    @property
    def workers(self) -> PodWorkers:
        return self.platform.workers


@asynccontextmanager
async def surrounded(place: Place, run: RunSpec, taken: Any) -> AsyncIterator[Watched]:
    """In leadership, and open."""
    root = await place.api.get(CONFIG_MAPS, run.name)
    leadership = await enter(place, run)
    platform = KubernetesPlatform(place.api, run, root, leadership, taken)
    await platform.fill()
    watched = Watched(platform, leadership)
    platform.open(0, lambda: watched.changes.append(None))
    try:
        yield watched
    finally:
        await platform.close()
