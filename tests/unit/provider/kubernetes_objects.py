"""Objects as the API server writes them, for tests of what they mean."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from elastic_runtime.documents import time_to_text, to_json
from elastic_runtime.kubernetes.objects import Event, Object, Pod
from elastic_runtime.run import runobjects
from elastic_runtime.run.headline import headline
from elastic_runtime.run.runobjects import Part, Term
from elastic_runtime.run.spec import RecoverySpec, RunSpec
from elastic_runtime.run.status import Phase, Status
from elastic_training.clusters.document import RunDocument
from elastic_training.clusters.kubernetes.documents.root import document

BEGAN = datetime(2026, 3, 1, 12, tzinfo=UTC)
SPEC = RunSpec("run", "uid-1", ("python", "train.py"), recovery=RecoverySpec(start_timeout=600.0, max_wait=300.0))

TRAINS = Status(SPEC.name, SPEC.uid, Phase.RUNNING, "2 ranks train", BEGAN, world_size=2)

Plain = dict[str, Any]


def after(seconds: float) -> datetime:
    return BEGAN + timedelta(seconds=seconds)


def text(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def root_map(*, complete: bool = True, spec: RunSpec = SPEC, **annotations: str) -> Object:
    marks = {runobjects.COMPLETE: text(BEGAN)} if complete else {}
    return Object(
        {
            "metadata": {
                "name": spec.name,
                "uid": "root-uid",
                "resourceVersion": "1",
                "creationTimestamp": text(BEGAN),
                "labels": runobjects.labels(spec.name, spec.uid, Part.ROOT),
                "annotations": marks | {f"{runobjects.PREFIX}/{name}": value for name, value in annotations.items()},
            },
            "data": {runobjects.SPEC_KEY: to_json(spec)},
        }
    )


def root(*, complete: bool = True, spec: RunSpec = SPEC, **annotations: str) -> RunDocument:
    return document(root_map(complete=complete, spec=spec, **annotations))


def status_map(status: Status | None, holder: str | None = None) -> Object:
    term = {} if holder is None else {runobjects.TERM: to_json(Term(1, holder, 1, BEGAN))}
    if status is None:
        return Object({"metadata": {"name": "run-status", "annotations": term}, "data": {}})
    marks = term | {runobjects.HEADLINE: to_json(headline(status))}
    return Object(
        {
            "metadata": {"name": "run-status", "annotations": marks},
            "data": {runobjects.STATUS_KEY: to_json(status)},
        }
    )


def labelled(manifest: Plain, part: Part) -> Plain:
    labels = runobjects.labels(SPEC.name, SPEC.uid, part)
    return {**manifest, "metadata": {**manifest["metadata"], "labels": labels}}


def map_of(status: Status) -> Plain:
    """The ConfigMap of a status, as a watch finds it."""
    return labelled(dict(status_map(status).raw), Part.STATUS)


def job(*conditions: str, suspend: bool = False) -> Object:
    return Object(
        {
            "metadata": {"name": "run-launcher", "uid": "job-uid"},
            "spec": {"suspend": suspend},
            "status": {"conditions": [{"type": condition, "status": "True"} for condition in conditions]},
        }
    )


def pod(
    name: str = "run-launcher-a",
    *,
    created: datetime = BEGAN,
    phase: str = "Pending",
    state: Plain | None = None,
    scheduled: Plain | None = None,
    **status: str,
) -> Pod:
    placed = {"type": "PodScheduled", "status": "True", "lastTransitionTime": text(created)} | (scheduled or {})
    containers = [] if state is None else [{"name": runobjects.LAUNCHER_CONTAINER, "state": state}]
    return Pod(
        {
            "metadata": {"name": name, "uid": f"uid of {name}", "creationTimestamp": text(created)},
            "status": {"phase": phase, "conditions": [placed], "containerStatuses": containers, **status},
        }
    )


def waiting(reason: str, message: str = "") -> Plain:
    return {"waiting": {"reason": reason, "message": message}}


def ended(code: int, reason: str = "Error", message: str = "", at: datetime = BEGAN) -> Plain:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message, "finishedAt": text(at)}}


RUNNING: Plain = {"running": {"startedAt": time_to_text(BEGAN)}}


def event(about: str, reason: str, message: str, count: int = 1, first: datetime = BEGAN) -> Event:
    """About the object with that uid."""
    return Event(
        {
            "type": "Warning",
            "involvedObject": {"uid": about},
            "reason": reason,
            "message": message,
            "count": count,
            "firstTimestamp": text(first),
        }
    )
