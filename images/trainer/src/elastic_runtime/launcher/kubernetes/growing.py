"""More memory for worker pods, without a change of any other pod.

The template of the workers' ReplicaSet comes first, which concerns pods that are made later alone. Then the pod that
ran out of memory is resized in place, where the API server serves the subresource ``resize`` of pods (Kubernetes 1.33)
and the node has room; else it is deleted, and the ReplicaSet makes another one from the template.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from copy import deepcopy
from datetime import datetime
from typing import Any, ParamSpec, TypeVar

from elastic_runtime.errors import Conflict, ElasticError, RetryableError, RunNotFound
from elastic_runtime.kubernetes.client import Client
from elastic_runtime.kubernetes.objects import Json, Object, Pod
from elastic_runtime.kubernetes.quantities import bytes_of, quantity_of
from elastic_runtime.kubernetes.reflector import Reflector
from elastic_runtime.kubernetes.resources import PODS, REPLICA_SETS
from elastic_runtime.kubernetes.retry import UNTIL_BACK
from elastic_runtime.printable import LONG, printable
from elastic_runtime.retry import Retry
from elastic_runtime.run.runobjects import WORKER_CONTAINER

P = ParamSpec("P")
T = TypeVar("T")
log = logging.getLogger(__name__)

IN_PLACE = 30.0
"""Seconds that a kubelet has to resize a pod, before the pod is replaced: its node may have no room."""
RIGHTS = (("apps", "replicasets", "patch"), ("", "pods", "delete"))
"""That growth needs. Without that to patch ``pods/resize``, pods are replaced."""
RULES = "deploy/rbac-grow-memory.yaml"
OOM_KILLED = "OOMKilled"


def limit_of(pod: Pod) -> int | None:
    """Return the bytes that the pod's worker may use now; None: no limit is known. Pure."""
    told = pod.container(WORKER_CONTAINER)
    # Since 1.33 the status says what the kubelet has set, and the spec what is wanted.
    return _limit(told.raw if told else {}) or _limit(_worker(pod.spec) or {})


def grown(containers: list[Json], limit: int) -> list[Json]:
    """Return the containers of a pod's spec, of which the worker has that limit of memory in bytes. Pure.

    Its request grows in proportion, so that its quality of service stays, which a resize must not change.
    """
    changed = deepcopy(containers)
    for container in changed:
        if container["name"] == WORKER_CONTAINER and (before := _limit(container)):
            resources: Any = container["resources"]
            if request := resources.get("requests", {}).get("memory"):
                share = bytes_of(str(request)) * limit // before
                resources["requests"]["memory"] = quantity_of(limit if share >= limit else share)
            resources["limits"]["memory"] = quantity_of(limit)
    return changed


def _limit(container: Json) -> int | None:
    text = ((container.get("resources") or {}).get("limits") or {}).get("memory")
    with contextlib.suppress(ValueError):
        return bytes_of(str(text))
    return None


def _worker(spec: Json) -> Json | None:
    return next((each for each in spec.get("containers") or () if each["name"] == WORKER_CONTAINER), None)


class MemoryGrowing:
    """Give it, and notice which pods need it.

    Args:
        client: to change ReplicaSet and pods with.
        pods: the worker pods.
        workers: their ReplicaSet, as it was seen last; None: it is gone.
        enabled: whether anything is to be given.
        on_warning: called when there is one.
    """

    def __init__(
        self,
        client: Client,
        pods: Reflector[Pod],
        workers: Callable[[], Object | None],
        on_warning: Callable[[], None],
        *,
        enabled: bool,
    ) -> None:
        self._client, self._pods, self._workers, self._on_warning = client, pods, workers, on_warning
        self.possible = enabled
        self._wanted: asyncio.Queue[tuple[Pod, int]] = asyncio.Queue()
        self._seen = self._ends()
        self._limits: Mapping[str, int | None] = {}
        self._killed: list[str] = []
        self._warnings: list[str] = []
        self._changed = asyncio.Event()

    def limit(self, pod: str) -> int | None:
        """Return the limit of the pod of that name, in bytes; None: not known."""
        return self._limits.get(pod)

    def begin(self) -> None:
        """Forget what has ended so far: that was another launcher's to answer."""
        self._killed = []

    def look(self) -> None:
        """Pods have changed."""
        ends = self._ends()
        self._killed += [name for end, name in ends.items() if end not in self._seen]
        self._seen = ends
        self._limits = {name: limit_of(pod) for name, pod in self._pods.objects.items()}
        self._changed.set()

    def killed(self) -> tuple[str, ...]:
        """Return pods whose container has ended for want of memory, since the last call."""
        names, self._killed = tuple(self._killed), []
        return names

    def warnings(self) -> tuple[str, ...]:
        """Return new warnings."""
        told, self._warnings = tuple(self._warnings), []
        return told

    def give(self, pod: str, limit: int) -> None:
        """Have it, or one in its place, have that limit."""
        if found := self._pods.objects.get(pod):
            self._wanted.put_nowait((found, limit))

    async def follow(self) -> None:
        """Do so until cancelled, or until the API server refuses it for good."""
        if not self.possible:
            return
        try:
            for group, resource, verb in RIGHTS:
                if not await _persistently(self._client.may, group, resource, verb):
                    self._cannot(f"the launcher may not {verb} {resource}. Apply {RULES}")
                    return
        except ElasticError as error:
            self._cannot(printable(error, LONG))
            return
        async with asyncio.TaskGroup() as giving:
            while True:
                giving.create_task(self._give(*await self._wanted.get()))

    async def _give(self, pod: Pod, limit: int) -> None:
        try:
            await _persistently(self._grow_template, limit)
            if not await self._resized(pod, limit):
                await _persistently(self._replace, pod)
        except ElasticError as error:
            self._cannot(printable(error, LONG))

    async def _grow_template(self, limit: int) -> None:
        found = self._workers()
        if found is None:
            raise RunNotFound("the workers' ReplicaSet is gone")
        template = found.spec["template"]["spec"]
        if (_limit(_worker(template) or {}) or limit) < limit:
            changes = {"template": {"spec": {"containers": grown(template["containers"], limit)}}}
            patch = {"metadata": {"resourceVersion": found.version}, "spec": changes}
            await self._client.patch(REPLICA_SETS, found.name, patch)

    async def _resized(self, pod: Pod, limit: int) -> bool:
        """Whether it is, in place, or gone."""
        try:
            await _persistently(self._resize, pod, limit)
        except RunNotFound:
            log.debug("pod %s is gone, or cannot be resized in place here", pod.name)
            return self._present(pod) is None
        except ElasticError as error:
            log.info("pod %s is replaced, and not resized: %s", pod.name, printable(error, LONG))
            return False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(IN_PLACE):
                while (now := self._present(pod)) and (limit_of(now) or 0) < limit:
                    if now.condition("PodResizePending").reason == "Infeasible":
                        break
                    self._changed.clear()
                    await self._changed.wait()
                else:
                    return True
        log.info("pod %s is replaced: its node has not made room for %s", pod.name, quantity_of(limit))
        return False

    async def _resize(self, pod: Pod, limit: int) -> None:
        found = self._present(pod)
        if found is None:
            return
        patch = {
            "metadata": {"uid": found.uid, "resourceVersion": found.version},
            "spec": {"containers": grown(found.spec["containers"], limit)},
        }
        await self._client.patch(PODS, pod.name, patch, "resize")

    async def _replace(self, pod: Pod) -> None:
        try:
            await self._client.delete(PODS, pod.name, uid=pod.uid)
        except (RunNotFound, Conflict):
            log.debug("pod %s is gone already", pod.name)

    def _present(self, pod: Pod) -> Pod | None:
        found = self._pods.objects.get(pod.name)
        return found if found and found.uid == pod.uid and not found.going else None

    def _cannot(self, why: str) -> None:
        if self.possible:
            self.possible = False
            self._warnings.append(f"workers that run out of memory get no more: {why}")
            self._on_warning()

    def _ends(self) -> Mapping[tuple[str, datetime | None], str]:
        """Last ends for want of memory, by uid and time, each with the name of its pod."""
        found = {}
        for pod in self._pods.objects.values():
            container = None if pod.going else pod.container(WORKER_CONTAINER)
            for end in (container.ended, container.ended_before) if container else ():
                if end and end.reason == OOM_KILLED:
                    found[pod.uid, end.at] = pod.name
        return found


async def _persistently(ask: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Its answer. Raises what another attempt does not help against, and RunNotFound."""
    retry = Retry(UNTIL_BACK)
    while True:
        try:
            return await ask(*args, **kwargs)
        except RunNotFound:
            raise
        except RetryableError as error:
            log.debug("workers get more memory later: %s", printable(error))
        await retry.pause()
