"""The pods that workers are in: which agent is in which of them, and on what machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any

from typing_extensions import override

from elastic_runtime.kubernetes.client import Client
from elastic_runtime.kubernetes.copies import watched_copy
from elastic_runtime.kubernetes.objects import Pod
from elastic_runtime.kubernetes.resources import PODS
from elastic_runtime.launcher.kubernetes.identities import Expected, Identities
from elastic_runtime.launcher.kubernetes.reclaims import Reclaims
from elastic_runtime.launcher.platform import Machine, WorkerSet
from elastic_runtime.protocol.rank_names import WorkerName
from elastic_runtime.protocol.wire import Hello
from elastic_runtime.run.join import is_joined

OUTLIVING = 60.0
"""Seconds for which an agent stays connected whose pod is gone: deleted by force, its processes may write the last."""


class WorkerPods:
    """Watches them.

    Args:
        client: of their namespace.
        labels: which pods, by a label selector.
        audience: for whom their tokens are.
        changed: called when a pod has changed.
        nodes_changed: called when something of their machines is known.
    """

    def __init__(
        self,
        client: Client,
        labels: str,
        audience: str,
        changed: Callable[[], None],
        nodes_changed: Callable[[], None],
    ) -> None:
        self._namespace, self._now = client.namespace, asyncio.get_running_loop().time
        self.copy = watched_copy(client, PODS, changed, labels=labels)
        self.identities = Identities(client, audience, self._expected, self._now)
        self.reclaims = Reclaims(client, self.copy, nodes_changed)
        self._absent: dict[str, float] = {}
        """By name: since when the pods of connected agents are gone."""

    def follow(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """Return what has to run until the launcher ends."""
        return self.copy.run(), self.reclaims.follow(), self.identities.prepare()

    async def close(self) -> None:
        """Ask for keys no more."""
        await self.identities.close()

    def of(self, worker: str) -> Pod | None:
        """Return the pod of a worker; None: it is not known."""
        return self.copy.objects.get(WorkerName.parse(worker).pod)

    def deadline(self, worker: str) -> datetime | None:
        """When this worker will be taken, as far as its pod and its node say."""
        pod = self.of(worker)
        return self.reclaims.deadline(pod) if pod else None

    def machine(self, worker: str) -> Machine | None:
        """Return the machine of this worker, as far as it is known."""
        pod = self.of(worker)
        return self.reclaims.machine(pod) if pod else None

    def gone(self, worker: str) -> None:
        """Its agent is connected no more."""
        name = WorkerName.parse(worker).pod
        self._absent.pop(name, None)
        self.identities.forget(name)

    def stray(self, worker: str) -> str | None:
        """As :meth:`~elastic_runtime.launcher.platform.WorkerSet.stray`."""
        if is_joined(worker):  # In no pod, with a certificate of its own.
            return None
        # Another process may have connected from elsewhere with what was in a pod.
        name, pod, now = WorkerName.parse(worker).pod, self.of(worker), self._now()
        if pod is not None or self.copy.trouble is not None:
            self._absent.pop(name, None)
            if pod is not None and not self.identities.confirms(name, pod.uid):
                return "its token was of an earlier pod of that name"
            return None
        return "its pod is gone" if now - self._absent.setdefault(name, now) > OUTLIVING else None

    def _expected(self, worker: str) -> Expected:
        """Of an agent's own name, which is its pod's."""
        pod = self.copy.objects.get(worker)
        return Expected(self._namespace, pod.uid if pod else None)


class InPods(WorkerSet):
    """Answers that follow from the workers' pods alone."""

    _pods: WorkerPods

    @override
    async def prove(self, hello: Hello, /) -> str | None:
        return await self._pods.identities.prove(hello)

    @override
    def admit(self, hello: Hello, /) -> None:
        self._pods.identities.admit(hello)

    @override
    def stray(self, worker: str, /) -> str | None:
        return self._pods.stray(worker)

    @override
    def machine(self, worker: str, /) -> Machine | None:
        return self._pods.machine(worker)
