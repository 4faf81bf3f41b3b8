"""Pods on machines that will be taken are given up at once, so that others are made while there is time.

A pod that a notice has emptied would stay until its node is gone, and most of a minute longer, until Kubernetes has
missed the node: a ReplicaSet replaces pods that are being deleted, and those alone. So does one whose agent is stopped,
or hangs: its container runs, and nothing else would end it.
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

REDIAL = 10.0
"""Seconds that a lost agent has to connect again before its pod is deleted: its network may have been cut."""
LOST_GRACE = 1
"""Seconds that such a pod has to end."""


class Replacing:
    """Delete pods on lost machines. Without the right to delete pods, log one warning and try again later.

    Args:
        client: to delete pods with.
        pods: the worker pods.
        now: monotonic seconds.
        coming: seconds that the agent of a running pod has to connect, before the pod is deleted.
        on_warning: called when there is one.
    """

    def __init__(
        self,
        client: Client,
        pods: Reflector[Pod],
        now: Callable[[], float],
        coming: float,
        on_warning: Callable[[], None],
    ) -> None:
        self._coming, self._on_warning = coming, on_warning
        self._connected: set[str] = set()
        """Names of pods."""
        self._kept: set[str] = set()
        """Uids of pods that we may not delete."""
        self._warnings: list[str] = []
        self._client, self._pods, self._now = client, pods, now
        self._nodes: dict[str, tuple[float, set[str]]] = {}
        """Name: when the first pod there was given up, and the uids of those that were there."""
        self._doomed: asyncio.Queue[Pod] = asyncio.Queue()
        self._silent: dict[str, asyncio.TimerHandle] = {}
        """By uid: pods whose agents were lost, until they are deleted."""
        self._ended: set[str] = set()
        """Uids of those that are."""
        self._given_up: set[str] = set()
        """Uids of pods that are deleted, since their machines will be taken."""
        self._refused = False

    def give_up(self, pod: Pod) -> None:
        """Nothing of the world is in it any more: have it deleted, unless it is already going. May be called again."""
        if pod.going or pod.uid in self._given_up:
            return
        if pod.node and pod.uid in self._there(pod.node):
            self._given_up.add(pod.uid)
            self._doomed.put_nowait(pod)

    def look(self) -> None:
        """Pods have changed: from now on wait for the agents of those that run."""
        here = {pod.uid: pod for pod in self._pods.objects.values() if not pod.going}
        for uid in self._silent.keys() - here.keys():
            self._silent.pop(uid).cancel()
        for pod in here.values():
            if pod.phase == "Running" and pod.name not in self._connected and pod.uid not in self._kept:
                self._wait_for(pod, self._coming)

    def end(self, pod: Pod) -> None:
        """Its agent is lost, but may be stopped or cut off: have it deleted, unless it connects again soon."""
        if not pod.going:
            self._wait_for(pod, REDIAL)

    def came(self, name: str) -> None:
        """The agent in the pod of this name is connected; the pod may be newer than our news."""
        self._connected.add(name)
        pod = self._pods.objects.get(name)
        if pod and (waiting := self._silent.pop(pod.uid, None)):
            waiting.cancel()

    def gone(self, name: str) -> None:
        """It is connected no more."""
        self._connected.discard(name)
        self.look()

    def warnings(self) -> tuple[str, ...]:
        """Return new warnings about pods that were deleted although nothing takes their machines."""
        told, self._warnings = tuple(self._warnings), []
        return told

    def _wait_for(self, pod: Pod, seconds: float) -> None:
        """For its agent to connect: of several bounds the nearest counts."""
        loop = asyncio.get_running_loop()
        if waiting := self._silent.get(pod.uid):
            if waiting.when() <= loop.time() + seconds:
                return
            waiting.cancel()
        why = f"its agent has not connected for {seconds:.0f} s"
        self._silent[pod.uid] = loop.call_later(seconds, self.end_now, pod, why)

    def has_ended(self, pod: Pod) -> bool:
        """Whether it is deleted because its agent was lost: an agent that wakes up then is not let in again."""
        return pod.uid in self._ended

    def close(self) -> None:
        """Cancel all timers, so that no further pod is deleted."""
        for waiting in self._silent.values():
            waiting.cancel()
        self._silent.clear()

    def end_now(self, pod: Pod, why: str) -> None:
        """Have it deleted, whatever it does, once; ``why`` is for people."""
        if pod.going or pod.uid in self._ended | self._kept:
            return
        self._silent.pop(pod.uid, None)
        self._warnings.append(f"pod {pod.name} is deleted: {why}")
        self._on_warning()
        self._ended.add(pod.uid)
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
                if pod.uid in self._ended:
                    # A stopped process does not handle SIGTERM. Never 0: only kubelet can say that a pod has ended.
                    await self._client.delete(PODS, pod.name, uid=pod.uid, grace=LOST_GRACE)
                else:
                    await self._client.delete(PODS, pod.name, uid=pod.uid)
                    log.info("pod %s is given up: no rank is in it any more", pod.name)
                return
            except (RunNotFound, Conflict):
                log.debug("pod %s is gone already", pod.name)
                return
            except (RetryableError, MissingRight) as error:
                self._log_error(error, pod)
                if isinstance(error, MissingRight) and pod.uid in self._ended:
                    self._ended.discard(pod.uid)
                    self._kept.add(pod.uid)
                    log.warning("pod %s stays, and its agent may connect again: %s", pod.name, printable(error))
                    return
                await asyncio.sleep(until_mended(error).delay(failures))
            except ElasticError as error:
                log.warning("pod %s stays until its machine is gone: %s", pod.name, printable(error))
                return

    def _log_error(self, error: ElasticError, pod: Pod) -> None:
        if isinstance(error, MissingRight) and not self._refused:
            self._refused = True
            log.info("pods are replaced only when their machines are gone: %s", printable(error))
        else:
            log.debug("pod %s is not given up yet: %s", pod.name, printable(error))
