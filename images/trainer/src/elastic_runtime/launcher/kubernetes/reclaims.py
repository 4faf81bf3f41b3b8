"""When worker pods will be gone: by their own word, and by that of the nodes that they are on.

A deletion has its deadline in the pod. What happens to a node is said by taints, which whoever takes the node away puts
on it before, and which need the right to read nodes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from elastic_runtime.clock import utc_now
from elastic_runtime.errors import ElasticError, MissingRight
from elastic_runtime.launcher.kubernetes.following import Mirror
from elastic_runtime.launcher.kubernetes.interface import Api, Kind, Object, Selector, node_of, uid_of

log = logging.getLogger(__name__)

MAX_NODES = 64
"""Nodes that are watched, each by a watch of its own as its kubelet does; the API client has a hundred connections."""
DRAIN = timedelta(seconds=120)
"""Before the end of a node that is about to be drained; its pods get deadlines of their own then, which count."""
TAINTS: Mapping[str, timedelta] = {
    "aws-node-termination-handler/spot-itn": timedelta(seconds=120),
    "cloud.google.com/impending-node-termination": timedelta(seconds=15),
    "remediator.kubernetes.azure.com/unschedulable": timedelta(seconds=30),
    "karpenter.sh/disrupted": DRAIN,
    "karpenter.sh/disruption": DRAIN,  # before karpenter 1.0
    "ToBeDeletedByClusterAutoscaler": DRAIN,
    "node.kubernetes.io/out-of-service": timedelta(0),
}
"""Key: time from the taint to the end. Not among them are those of nodes that may well stay: ``unschedulable``
(somebody looks after it), ``not-ready`` and ``unreachable`` (kubelet is silent; if its worker is, too, that shows
sooner).
"""
KUBELET_TIME = timedelta(seconds=15)
"""That kubelet leaves to pods when its node shuts down, on GKE; elsewhere it is more."""


def pod_deadline(pod: Object) -> datetime | None:
    """When this pod will be gone: it is being deleted, or kubelet ends it. None: nobody has said so."""
    if text := pod["metadata"].get("deletionTimestamp"):
        return datetime.fromisoformat(text)  # It has the grace period in it.
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if (condition["type"], condition["status"]) == ("DisruptionTarget", "True"):
            # The API server's own reasons (eviction, preemption, taint manager) are followed by a deletion at once.
            begun = datetime.fromisoformat(condition["lastTransitionTime"])
            return begun + KUBELET_TIME if condition.get("reason") == "TerminationByKubelet" else None
    return None


def ending_taints(node: Object) -> set[str]:
    """Keys of the taints that say that this node is about to go."""
    taints = (node.get("spec") or {}).get("taints") or ()
    return {str(taint["key"]) for taint in taints} & TAINTS.keys()


class Reclaims:
    """See the module. Without the right to read nodes, it does without, and says so once.

    Args:
        api: to watch nodes with.
        pods: worker pods as they are now, by name.
        on_change: called when a node may have another deadline.
        now: wall clock.
    """

    def __init__(
        self, api: Api, pods: Mapping[str, Object], on_change: Callable[[], None], now: Callable[[], datetime] = utc_now
    ) -> None:
        self._api, self._pods, self._on_change, self._now = api, pods, on_change, now
        self._nodes: dict[str, Mirror] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._deadlines: dict[tuple[str, str], datetime] = {}
        """By node's uid and taint; from the moment at which it was seen, since most taints have no time."""
        self._moved = asyncio.Event()
        self._refused = self._too_many = False

    def look(self) -> None:
        """To be called when pods have changed."""
        self._moved.set()

    def deadline(self, pod: Object) -> datetime | None:
        """The earlier of the pod's own and its node's; None: neither is known to go."""
        found = [own] if (own := pod_deadline(pod)) else []
        for node in self._node_of(pod):
            found += [self._deadlines[uid_of(node), taint] for taint in ending_taints(node)]
        return min(found, default=None)

    async def follow(self) -> None:
        """Watch the nodes that there are pods on, until cancelled, or not allowed to."""
        try:
            while not self._refused:
                self._moved.clear()
                await self._choose_nodes()
                await self._moved.wait()
        finally:
            for name in list(self._tasks):
                await self._forget(name)

    async def _choose_nodes(self) -> None:
        wanted = {node_of(pod) for pod in self._pods.values()} - {""}
        for name in self._tasks.keys() - wanted:
            await self._forget(name)
        for name in sorted(wanted - self._tasks.keys()):
            if len(self._tasks) >= MAX_NODES:
                if not self._too_many:
                    log.info("taints are heeded on %d nodes only", MAX_NODES)
                self._too_many = True
                return
            if not await self._watch(name):
                return

    async def _watch(self, name: str) -> bool:
        """Whether that is allowed."""
        mirror = Mirror(Kind.NODE, Selector(fields=f"metadata.name={name}"), self._node_changed, quiet=True)
        try:
            await mirror.fill(self._api)
        except MissingRight as error:
            log.info("taints of nodes are not heeded: %s", error)
            self._refused = True
            self._moved.set()
            return False
        except ElasticError as error:
            log.debug("node %s: %s", name, error)  # Following tries again.
        self._nodes[name] = mirror
        self._tasks[name] = asyncio.create_task(mirror.follow(self._api))
        self._node_changed()
        return True

    async def _forget(self, name: str) -> None:
        task = self._tasks.pop(name)
        del self._nodes[name]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def _node_of(self, pod: Object) -> list[Object]:
        mirror = self._nodes.get(node_of(pod))
        return list(mirror.objects.values()) if mirror else []

    def _node_changed(self) -> None:
        nodes = [node for mirror in self._nodes.values() for node in mirror.objects.values()]
        present = {(uid_of(node), taint) for node in nodes for taint in ending_taints(node)}
        self._deadlines = {
            (uid, taint): self._deadlines.get((uid, taint), self._now() + TAINTS[taint]) for uid, taint in present
        }
        self._on_change()
