"""The nodes that worker pods are on: what they are, and when they will be gone.

A deletion has its deadline in the pod. What happens to a node is said by taints, which whoever takes the node away puts
on it before, and which need the right to read nodes; so do its labels.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

from elastic_runtime.clock import utc_now
from elastic_runtime.errors import ElasticError, PermanentError
from elastic_runtime.kubernetes.client import Client
from elastic_runtime.kubernetes.nodes import ENDING_TAINTS, capacity_type, ending_taints, instance_type
from elastic_runtime.kubernetes.objects import Node, Pod
from elastic_runtime.kubernetes.reflector import Reflector
from elastic_runtime.kubernetes.resources import NODES
from elastic_runtime.launcher.platform import Machine
from elastic_runtime.printable import printable

log = logging.getLogger(__name__)

MAX_NODES = 64
"""Nodes that are watched, each by a watch of its own as its kubelet does."""
KUBELET_TIME = timedelta(seconds=15)
"""That kubelet leaves to pods when its node shuts down, on GKE; elsewhere it is more."""


def pod_deadline(pod: Pod) -> datetime | None:
    """When this pod will be gone: it is being deleted, or kubelet ends it. None: nobody has said so."""
    if pod.deadline:
        return pod.deadline
    target = pod.condition("DisruptionTarget")
    # The API server's own reasons (eviction, preemption, taint manager) are followed by a deletion at once.
    if target.holds and target.since and target.reason == "TerminationByKubelet":
        return target.since + KUBELET_TIME
    return None


class Reclaims:
    """Watch the nodes of worker pods. Without the right to read nodes, log one warning and try again later.

    Args:
        client: to watch nodes with.
        pods: the worker pods.
        on_change: called when a node has changed.
        now: wall clock.
    """

    def __init__(
        self,
        client: Client,
        pods: Reflector[Pod],
        on_change: Callable[[], None],
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._client, self._pods, self._on_change, self._now = client, pods, on_change, now
        self._watches: dict[str, tuple[Reflector[Node], asyncio.Task[None]]] = {}
        """By node's name."""
        self._deadlines: dict[tuple[str, str], datetime] = {}
        """By node's uid and taint; from the moment at which it was seen, since most taints have no time."""
        self._moved = asyncio.Event()
        self._refused = self._too_many = False

    def look(self) -> None:
        """To be called when pods have changed."""
        self._moved.set()

    def deadline(self, pod: Pod) -> datetime | None:
        """The earlier of the pod's own and its node's; None: neither is known to go."""
        found = [own] if (own := pod_deadline(pod)) else []
        if node := self._node_of(pod):
            found += [self._deadlines[node.uid, taint] for taint in ending_taints(node)]
        return min(found, default=None)

    def machine(self, pod: Pod) -> Machine | None:
        """What it runs on; None: not known."""
        node = self._node_of(pod)
        return Machine(capacity_type(node), instance_type(node)) if node else None

    async def follow(self) -> None:
        """Watch the nodes that there are pods on, until cancelled."""
        try:
            while True:
                self._moved.clear()
                await self._choose_nodes()
                await self._moved.wait()
        finally:
            for name in list(self._watches):
                await self._forget(name)

    async def _choose_nodes(self) -> None:
        wanted = {pod.node for pod in self._pods.objects.values()} - {""}
        for name in self._watches.keys() - wanted:
            await self._forget(name)
        for name in sorted(wanted - self._watches.keys()):
            if len(self._watches) >= MAX_NODES:
                if not self._too_many:
                    log.info("taints and labels are read of %d nodes only", MAX_NODES)
                self._too_many = True
                return
            watch = Reflector(
                self._client,
                NODES,
                fields=f"metadata.name={name}",
                changed=lambda _: self._node_changed(),
                troubled=self._troubled,
            )
            self._watches[name] = watch, asyncio.create_task(watch.run(), name=f"watch of node {name}")

    async def _forget(self, name: str) -> None:
        _, task = self._watches.pop(name)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def _troubled(self, error: ElasticError | None) -> None:
        """That the API server does not answer, others say."""
        if isinstance(error, PermanentError) and not self._refused:
            self._refused = True
            log.info("taints, capacity and instance types of the workers' nodes are not read: %s", printable(error))

    def _node_of(self, pod: Pod) -> Node | None:
        watch = self._watches.get(pod.node)
        return watch[0].objects.get(pod.node) if watch else None

    def _nodes(self) -> Iterator[Node]:
        for watch, _ in self._watches.values():
            yield from watch.objects.values()

    def _node_changed(self) -> None:
        present = {(node.uid, taint) for node in self._nodes() for taint in ending_taints(node)}
        self._deadlines = {
            (uid, taint): self._deadlines.get((uid, taint), self._now() + ENDING_TAINTS[taint])
            for uid, taint in present
        }
        self._on_change()
