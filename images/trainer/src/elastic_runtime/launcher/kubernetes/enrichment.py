"""Asking Kubernetes, now and then, for what no watch tells: why a pod is stuck, and what a node is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from elastic_runtime.errors import ElasticError, PermanentError
from elastic_runtime.kubernetes import nodes
from elastic_runtime.kubernetes.client import Client
from elastic_runtime.kubernetes.diagnosis import needs_events, warning_of
from elastic_runtime.kubernetes.objects import Pod
from elastic_runtime.kubernetes.reflector import Reflector
from elastic_runtime.kubernetes.resources import EVENTS, NODES, Kind
from elastic_runtime.kubernetes.retry import UNTIL_ALLOWED
from elastic_runtime.launcher.platform import Machine
from elastic_runtime.retry import Retry

log = logging.getLogger(__name__)

INTERVAL = 5.0
"""Seconds between two rounds."""
MAX_PODS = 3
"""Stuck pods whose events are read in one round; they all have the same template."""


class Enrichment:
    """See the module. Without the right to read something, it does without, says so once, and tries again later.

    Args:
        client: to ask.
        pods: the worker pods.
        on_change: called when something new is known.
    """

    def __init__(self, client: Client, pods: Reflector[Pod], on_change: Callable[[], None]) -> None:
        self._client, self._pods, self._on_change = client, pods, on_change
        self._refusals: dict[Kind[Any], tuple[Retry, float]] = {}
        """And when to ask again."""
        self.warnings: Mapping[str, str] = {}
        """Newest warning by uid of a pod that is stuck."""
        self.machines: dict[str, Machine] = {}
        """By name of a node."""

    async def follow(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL)
            await self.ask()

    async def ask(self) -> None:
        """One round; nothing is asked when all is well."""
        pods = list(self._pods.objects.values())
        before = self.warnings, len(self.machines)
        stuck = [pod.uid for pod in pods if needs_events(pod)][:MAX_PODS]
        self.warnings = {uid: text for uid in stuck if (text := await self._warning(uid))}
        for node in sorted({pod.node for pod in pods} - {""}):
            if node not in self.machines and (machine := await self._machine(node)):
                self.machines[node] = machine
        if before != (self.warnings, len(self.machines)):
            self._on_change()

    async def _warning(self, uid: str) -> str:
        if not self._due(EVENTS):
            return ""
        try:
            found = await self._client.list(EVENTS, fields=f"involvedObject.uid={uid},type=Warning")
        except ElasticError as error:
            self._note(EVENTS, error, "why pods are stuck is not told")
            return self.warnings.get(uid, "")
        return warning_of(found)

    async def _machine(self, name: str) -> Machine | None:
        if not self._due(NODES):
            return None
        try:
            node = await self._client.get(NODES, name)
        except ElasticError as error:
            self._note(NODES, error, "capacity and instance types of the workers are not told")
            return None
        return Machine(nodes.capacity_type(node), nodes.instance_type(node))

    def _due(self, kind: Kind[Any]) -> bool:
        return kind not in self._refusals or asyncio.get_running_loop().time() >= self._refusals[kind][1]

    def _note(self, kind: Kind[Any], error: ElasticError, consequence: str) -> None:
        if not isinstance(error, PermanentError):
            log.debug("%s: %s", consequence, error)
            return
        if kind not in self._refusals:
            log.info("%s: %s", consequence, error)
        retry, _ = self._refusals.get(kind, (Retry(UNTIL_ALLOWED), 0.0))
        self._refusals[kind] = retry, asyncio.get_running_loop().time() + retry.failed()
