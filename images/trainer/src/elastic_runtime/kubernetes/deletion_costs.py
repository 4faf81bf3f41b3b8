"""Which worker costs least to lose, for whoever scales the workers' ReplicaSet in.

Its controller deletes those pods first that are not placed or not ready, and of the others those with the lowest
`deletion cost`_; this tells it.

.. _deletion cost: https://kubernetes.io/docs/concepts/workloads/controllers/replicaset/#pod-deletion-cost
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from elastic_runtime.errors import Conflict, ElasticError, MissingRight, RetryableError, RunNotFound
from elastic_runtime.kubernetes.client import Client
from elastic_runtime.kubernetes.objects import Pod
from elastic_runtime.kubernetes.reflector import Reflector
from elastic_runtime.kubernetes.resources import PODS
from elastic_runtime.printable import printable

log = logging.getLogger(__name__)

COST = "controller.kubernetes.io/pod-deletion-cost"
PAUSE = 10.0
"""Seconds between two rounds, at least: each change of an annotation goes to every reader of pods."""


class DeletionCosts:
    """Tells them. Without the right to change pods it says so once, and leaves it.

    Args:
        client: to change pods with.
        pods: the worker pods.
    """

    def __init__(self, client: Client, pods: Reflector[Pod]) -> None:
        self._client, self._pods = client, pods
        self._wanted: Mapping[str, int] = {}
        self._changed = asyncio.Event()

    def offer(self, costs: Mapping[str, int]) -> None:
        """Set what :meth:`follow` writes to the pods. Never blocks.

        Args:
            costs: by the name of a pod.
        """
        if costs != self._wanted:
            self._wanted = costs
            self._changed.set()

    async def follow(self) -> None:
        """Write changed costs to the pods until cancelled, or until the API server forbids it."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            for name, cost in self._wanted.items():
                pod = self._pods.objects.get(name)
                if pod and not pod.going and pod.annotations.get(COST, "0") != str(cost):
                    try:
                        await self._write(pod, cost)
                    except RetryableError as error:
                        log.debug("the deletion cost of pod %s is set later: %s", name, printable(error))
                        self._changed.set()
                    except ElasticError as error:
                        why = "deploy/rbac-deletion-cost.yaml has the right to set it"
                        if not isinstance(error, MissingRight):
                            why = printable(error)
                        log.info("if fewer workers are wanted, Kubernetes does not know what each costs: %s", why)
                        return
            await asyncio.sleep(PAUSE)

    async def _write(self, pod: Pod, cost: int) -> None:
        try:
            await self._client.patch(PODS, pod.name, {"metadata": {"uid": pod.uid, "annotations": {COST: str(cost)}}})
        except (RunNotFound, Conflict):
            log.debug("pod %s is gone already", pod.name)
