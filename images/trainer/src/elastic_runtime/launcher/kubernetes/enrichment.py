"""Asking Kubernetes, now and then, for what no watch tells: why a pod is stuck, and what a node is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from elastic_runtime.errors import ElasticError, MissingRight
from elastic_runtime.launcher.kubernetes.diagnosis import needs_events, warning_of
from elastic_runtime.launcher.kubernetes.interface import Api, Kind, Object, Selector, labels_of, node_of, uid_of
from elastic_runtime.launcher.kubernetes.machines import machine_of
from elastic_runtime.launcher.platform import Machine

log = logging.getLogger(__name__)

INTERVAL = 5.0
"""Seconds between two rounds."""
MAX_PODS = 3
"""Stuck pods whose events are read in one round; they all have the same template."""


class Enrichment:
    """See the module. Without the right to read something, it does without, and says so once.

    Args:
        api: to ask.
        pods: the worker pods as they are now.
        on_change: called when something new is known.
    """

    def __init__(self, api: Api, pods: Callable[[], Iterable[Object]], on_change: Callable[[], None]) -> None:
        self._api, self._pods, self._on_change = api, pods, on_change
        self._refused: set[Kind] = set()
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
        pods = list(self._pods())
        before = self.warnings, len(self.machines)
        stuck = [uid_of(pod) for pod in pods if needs_events(pod)][:MAX_PODS]
        self.warnings = {uid: text for uid in stuck if (text := await self._warning(uid))}
        for node in sorted({node_of(pod) for pod in pods} - {""}):
            if node not in self.machines and (machine := await self._machine(node)):
                self.machines[node] = machine
        if before != (self.warnings, len(self.machines)):
            self._on_change()

    async def _warning(self, uid: str) -> str:
        if Kind.EVENT in self._refused:
            return ""
        try:
            found = await self._api.list(Kind.EVENT, Selector(fields=f"involvedObject.uid={uid},type=Warning"))
        except ElasticError as error:
            self._note(Kind.EVENT, error, "why pods are stuck is not told")
            return self.warnings.get(uid, "")
        return warning_of(found.objects)

    async def _machine(self, node: str) -> Machine | None:
        if Kind.NODE in self._refused:
            return None
        try:
            return machine_of(labels_of(await self._api.read(Kind.NODE, node)))
        except ElasticError as error:
            self._note(Kind.NODE, error, "capacity and instance types of the workers are not told")
            return None

    def _note(self, kind: Kind, error: ElasticError, consequence: str) -> None:
        if isinstance(error, MissingRight):
            self._refused.add(kind)
            log.info("%s: %s", consequence, error)
        else:
            log.debug("%s: %s", consequence, error)
