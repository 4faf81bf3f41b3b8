"""Taking a run away: what computes first, then all the rest with its root.

Kubernetes' garbage collector would take all at once, the Secret before the pods that mount it; and a pod that is being
started when its Secret goes stays for minutes (before Kubernetes 1.27). So the Job and the worker set go first. Before
them comes a mark on the root: from then on nobody adopts the run, and whoever sees it goes on with its removal.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from elastic_runtime.clock import utc_now
from elastic_runtime.errors import Conflict, RunNotFound
from elastic_runtime.kubernetes.client import Client
from elastic_runtime.kubernetes.objects import Object, Pod
from elastic_runtime.kubernetes.resources import CONFIG_MAPS, JOBS, PODS, REPLICA_SETS, Kind
from elastic_runtime.run import runobjects
from elastic_runtime.run.runobjects import ObjectNames
from elastic_training.clusters.document import RunDocument
from elastic_training.clusters.kubernetes.documents import compare_and_set
from elastic_training.clusters.kubernetes.documents.root import RootVersion, of_run

OVERDUE = timedelta(seconds=30)
"""A pod that is there so long after its grace period has a node that does not answer."""
DEAD = timedelta(seconds=3)
"""A kubelet before 1.22 may keep a deleted pod whose containers have ended for another minute."""
REMOVED = "the run is being deleted"
"""Reason of the cancellation."""


async def remove(client: Client, found: RunDocument) -> None:
    """One step of it: call again, with the root as it is then, until the root is gone.

    Raises:
        Conflict: somebody has changed the root since it was read.
        RunNotFound: it is gone.
    """
    if not found.going:
        pods = await _pods(client, found)
        # Nothing runs or is about to, and nobody is about to clear up after it.
        if all(pod.over and not pod.going for pod in pods) and (pods or not await _compute(client, found)):
            seen: RootVersion = found.version
            version = seen.resource_version
            await client.delete(CONFIG_MAPS, found.ref.name, uid=seen.uid, version=version, propagation="Foreground")
            return
        if found.cancelled is None:
            found = await compare_and_set.change(client, found, found.asked_to_end(REMOVED))
        await end_compute(client, found)
    await _forget(client, found)


async def end_compute(client: Client, found: RunDocument) -> None:
    """Delete the run's Job and ReplicaSets, and so its pods. Objects that are gone already are skipped."""
    for kind, thing in await _compute(client, found):
        with suppress(Conflict, RunNotFound):
            await client.delete(kind, thing.name, uid=thing.uid)


async def _compute(client: Client, found: RunDocument) -> list[tuple[Kind[Any], Object]]:
    """What has pods, or will have, and is not being deleted."""
    names = ObjectNames(found.ref.name)
    kinds = ((JOBS, names.launcher), (REPLICA_SETS, names.worker), (REPLICA_SETS, names.jupyter))
    things = [(kind, await client.find(kind, name)) for kind, name in kinds]
    return [(kind, each) for kind, each in things if each and of_run(each, found.ref.uid) and not each.going]


async def _forget(client: Client, found: RunDocument) -> None:
    """Have Kubernetes forget pods that it would keep for long: of nodes that do not answer, and dead ones.

    What may still run on such a node cannot do harm: its checkpoints are fenced, and nobody it could talk to is left.
    """
    now = utc_now()
    for pod in await _pods(client, found):
        died = _died(pod)
        if pod.deadline and (now > pod.deadline + OVERDUE or (died and now > died + DEAD)):
            with suppress(Conflict, RunNotFound):
                await client.delete(PODS, pod.name, uid=pod.uid, grace=0)


async def _pods(client: Client, found: RunDocument) -> list[Pod]:
    return await client.list(PODS, runobjects.selector(run=found.ref.name, uid=found.ref.uid))


def _died(pod: Pod) -> datetime | None:
    """When its last container ended; None while one runs."""
    ends = [each.ended.at if each.ended else None for each in pod.containers]
    return max((end for end in ends if end), default=None) if all(ends) else None
