"""Taking a run away: what computes first, then all the rest with its root.

Kubernetes' garbage collector would take all at once, the Secret before the pods that mount it; and a pod that is being
started when its Secret goes stays for minutes (before Kubernetes 1.27). So the Job and the worker set go first. Before
them comes a mark on the root: from then on nobody adopts the run, and whoever sees it goes on with its removal.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timedelta

from elastic_runtime import runobjects
from elastic_runtime.clock import utc_now
from elastic_runtime.errors import Conflict, RunNotFound
from elastic_runtime.runobjects import ObjectNames
from elastic_training.clusters.document import RunDocument
from elastic_training.clusters.kubernetes import compare_and_set, resources
from elastic_training.clusters.kubernetes.api import Api
from elastic_training.clusters.kubernetes.resources import CONFIG_MAPS, JOBS, PODS, REPLICA_SETS, Object
from elastic_training.clusters.kubernetes.root import RootVersion, moment

OVERDUE = timedelta(seconds=30)
"""A pod that is there so long after its grace period has a node that does not answer."""
DEAD = timedelta(seconds=3)
"""A kubelet before 1.22 may keep a deleted pod whose containers have ended for another minute."""
REMOVED = "the run is being deleted"
"""Reason of the cancellation."""


def until(seconds: float, pause: float) -> Iterator[None]:
    """Again and again, with a pause between, for so long; at least once."""
    end = time.monotonic() + seconds
    yield
    while time.monotonic() < end:
        time.sleep(pause)
        yield


def remove(api: Api, found: RunDocument) -> None:
    """One step of it: call again, with the root as it is then, until the root is gone.

    Raises:
        Conflict: somebody has changed the root since it was read.
        RunNotFound: it is gone.
    """
    if not found.going:
        if all(_over(pod) for pod in _pods(api, found)):
            seen: RootVersion = found.version
            version = seen.resource_version
            api.delete(CONFIG_MAPS, found.ref.name, uid=seen.uid, version=version, propagation="Foreground")
            return
        if found.cancelled is None:
            found = compare_and_set.change(api, found, found.asked_to_end(REMOVED))
        end_compute(api, found)
    _forget(api, found)


def end_compute(api: Api, found: RunDocument) -> None:
    """Delete what has pods."""
    names = ObjectNames(found.ref.name)
    for kind, name in ((JOBS, names.launcher), (REPLICA_SETS, names.worker)):
        thing = api.find(kind, name)
        if thing is None or not _of(found, thing) or "deletionTimestamp" in thing["metadata"]:
            continue
        try:
            api.delete(kind, name, uid=resources.uid_of(thing))
        except (Conflict, RunNotFound):
            continue


def _forget(api: Api, found: RunDocument) -> None:
    """Have Kubernetes forget pods that it would keep for long: of nodes that do not answer, and dead ones.

    What may still run on such a node cannot do harm: its checkpoints are fenced, and nobody it could talk to is left.
    """
    now = utc_now()
    for pod in _pods(api, found):
        deadline = pod["metadata"].get("deletionTimestamp")
        if deadline is None:
            continue
        died = _died(pod)
        if now > moment(deadline) + OVERDUE or (died is not None and now > died + DEAD):
            try:
                api.delete(PODS, resources.name_of(pod), uid=resources.uid_of(pod), grace=0)
            except (Conflict, RunNotFound):
                continue


def _pods(api: Api, found: RunDocument) -> list[Object]:
    return api.list(PODS, runobjects.selector(run=found.ref.name, uid=found.ref.uid))


def _died(pod: Object) -> datetime | None:
    """When its last container ended; None while one runs."""
    states = [container.get("state", {}) for container in pod["status"].get("containerStatuses") or []]
    ends = [state.get("terminated", {}).get("finishedAt") for state in states]
    return max(map(moment, ends)) if ends and all(ends) else None


def _over(pod: Object) -> bool:
    """Whether nothing of it runs, and nobody is about to clear up after it."""
    return pod["status"].get("phase") in ("Succeeded", "Failed") and "deletionTimestamp" not in pod["metadata"]


def _of(found: RunDocument, thing: Object) -> bool:
    return resources.labels_of(thing).get(runobjects.UID_LABEL) == found.ref.uid
