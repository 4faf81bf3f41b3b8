"""Pods on machines that will be taken are given up at once, so that others are made while there is time.

A pod that a notice has emptied would stay until its node is gone, and most of a minute longer, until Kubernetes has
missed the node: a ReplicaSet replaces pods that are being deleted, and those alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from elastic_runtime.errors import Conflict, ElasticError, MissingRight, RetryableError, RunNotFound
from elastic_runtime.launcher.kubernetes import diagnosis
from elastic_runtime.launcher.kubernetes.following import PAUSE
from elastic_runtime.launcher.kubernetes.interface import Api, Kind, Object, name_of, node_of, uid_of

log = logging.getLogger(__name__)

NODE_PAUSE = 900.0
"""Seconds for which pods that have come to a node since one was given up there are not given up, too: a scheduler that
knows nothing of the notice may put the next one on the very machine that is about to go, again and again."""


class Replacing:
    """See the module. Without the right to delete pods it leaves them to Kubernetes, and says so once.

    Args:
        api: to delete pods with.
        pods: worker pods as they are now, by name.
        now: monotonic seconds.
    """

    def __init__(self, api: Api, pods: Mapping[str, Object], now: Callable[[], float]) -> None:
        self._api, self._pods, self._now = api, pods, now
        self._nodes: dict[str, tuple[float, set[str]]] = {}
        """Name: when the first pod there was given up, and the uids of those that were there."""
        self._doomed: asyncio.Queue[Object] = asyncio.Queue()
        self._refused = False

    def give_up(self, pod: Object) -> None:
        """Nothing of the world is in it any more: have it deleted, unless it is already going."""
        node = node_of(pod)
        if self._refused or diagnosis.is_going(pod) or not node or uid_of(pod) not in self._there(node):
            return
        self._doomed.put_nowait(pod)

    async def follow(self) -> None:
        """Delete what was given up, until cancelled, or not allowed to."""
        while not self._refused:
            await self._delete(await self._doomed.get())

    def _there(self, node: str) -> set[str]:
        since, uids = self._nodes.get(node, (0.0, set()))
        if not uids or self._now() - since > NODE_PAUSE:
            uids = {uid_of(pod) for pod in self._pods.values() if node_of(pod) == node}
            self._nodes[node] = (self._now(), uids)
        return uids

    async def _delete(self, pod: Object) -> None:
        name = name_of(pod)
        while True:
            try:
                await self._api.delete(Kind.POD, name, uid_of(pod))
                log.info("pod %s is given up before its machine is taken", name)
            except MissingRight as error:
                self._refused = True
                log.info("pods are replaced only when their machines are gone: %s", error)
            except (RunNotFound, Conflict):
                log.debug("pod %s is gone already", name)
            except RetryableError as error:
                log.debug("pod %s is not given up yet: %s", name, error)
                await asyncio.sleep(PAUSE)
                continue
            except ElasticError as error:
                log.warning("pod %s stays until its machine is gone: %s", name, error)
            return
