"""Pods on machines that will be taken are given up at once, so that others are made while there is time.

A pod that a notice has emptied would stay until its node is gone, and most of a minute longer, until Kubernetes has
missed the node: a ReplicaSet replaces pods that are being deleted, and those alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from elastic_runtime.errors import Conflict, ElasticError, MissingRight, RetryableError, RunNotFound
from elastic_runtime.kubernetes.client import Client
from elastic_runtime.kubernetes.objects import Pod
from elastic_runtime.kubernetes.reflector import Reflector
from elastic_runtime.kubernetes.resources import PODS
from elastic_runtime.kubernetes.retry import until_mended
from elastic_runtime.printable import printable

log = logging.getLogger(__name__)

NODE_PAUSE = 900.0
"""Seconds for which pods that have come to a node since one was given up there are not given up, too: a scheduler that
knows nothing of the notice may put the next one on the very machine that is about to go, again and again."""


class Replacing:
    """See the module. Without the right to delete pods, it says so once, and tries again later.

    Args:
        client: to delete pods with.
        pods: the worker pods.
        now: monotonic seconds.
    """

    def __init__(self, client: Client, pods: Reflector[Pod], now: Callable[[], float]) -> None:
        self._client, self._pods, self._now = client, pods, now
        self._nodes: dict[str, tuple[float, set[str]]] = {}
        """Name: when the first pod there was given up, and the uids of those that were there."""
        self._doomed: asyncio.Queue[Pod] = asyncio.Queue()
        self._refused = False

    def give_up(self, pod: Pod) -> None:
        """Nothing of the world is in it any more: have it deleted, unless it is already going."""
        if not pod.going and pod.node and pod.uid in self._there(pod.node):
            self._doomed.put_nowait(pod)

    async def follow(self) -> None:
        """Delete what was given up, until cancelled."""
        while True:
            await self._delete(await self._doomed.get())

    def _there(self, node: str) -> set[str]:
        since, uids = self._nodes.get(node, (0.0, set()))
        if not uids or self._now() - since > NODE_PAUSE:
            uids = {pod.uid for pod in self._pods.objects.values() if pod.node == node}
            self._nodes[node] = (self._now(), uids)
        return uids

    async def _delete(self, pod: Pod) -> None:
        failures = 0
        while True:
            failures += 1
            try:
                await self._client.delete(PODS, pod.name, uid=pod.uid)
                log.info("pod %s is given up before its machine is taken", pod.name)
                return
            except (RunNotFound, Conflict):
                log.debug("pod %s is gone already", pod.name)
                return
            except (RetryableError, MissingRight) as error:
                self._tell(error, pod)
                await asyncio.sleep(until_mended(error).delay(failures))
            except ElasticError as error:
                log.warning("pod %s stays until its machine is gone: %s", pod.name, printable(error))
                return

    def _tell(self, error: ElasticError, pod: Pod) -> None:
        if isinstance(error, MissingRight) and not self._refused:
            self._refused = True
            log.info("pods are replaced only when their machines are gone: %s", printable(error))
        else:
            log.debug("pod %s is not given up yet: %s", pod.name, printable(error))
