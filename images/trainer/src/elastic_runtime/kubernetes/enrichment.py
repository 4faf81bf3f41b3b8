"""Asking Kubernetes, now and then, for what no watch tells: why a pod is stuck."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from elastic_runtime.errors import ElasticError, PermanentError
from elastic_runtime.kubernetes.client import Client
from elastic_runtime.kubernetes.diagnosis import needs_events, warning_of
from elastic_runtime.kubernetes.objects import Pod
from elastic_runtime.kubernetes.reflector import Reflector
from elastic_runtime.kubernetes.resources import EVENTS
from elastic_runtime.kubernetes.retry import UNTIL_ALLOWED
from elastic_runtime.printable import printable
from elastic_runtime.retry import Retry

log = logging.getLogger(__name__)

INTERVAL = 5.0
"""Seconds between two rounds."""
MAX_PODS = 3
"""Stuck pods whose events are read in one round; they all have the same template."""


class Enrichment:
    """Read events and quotas that explain why pods are stuck. Without the right, log one warning and try again later.

    Args:
        client: to ask.
        pods: the worker pods.
        on_change: called when something new is known.
    """

    def __init__(self, client: Client, pods: Reflector[Pod], on_change: Callable[[], None]) -> None:
        self._client, self._pods, self._on_change = client, pods, on_change
        self._refusals, self._due = Retry(UNTIL_ALLOWED), 0.0
        self.warnings: Mapping[str, str] = {}
        """Newest warning by uid of a pod that is stuck."""

    async def follow(self) -> None:
        """Query Kubernetes at intervals, until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL)
            await self.ask()

    async def ask(self) -> None:
        """One round; nothing is asked when all is well."""
        stuck = [pod.uid for pod in self._pods.objects.values() if needs_events(pod)][:MAX_PODS]
        before, self.warnings = self.warnings, {uid: text for uid in stuck if (text := await self._warning(uid))}
        if before != self.warnings:
            self._on_change()

    async def _warning(self, uid: str) -> str:
        now = asyncio.get_running_loop().time()
        if now < self._due:
            return ""
        try:
            return warning_of(await self._client.list(EVENTS, fields=f"involvedObject.uid={uid},type=Warning"))
        except PermanentError as error:
            if not self._refusals.failures:
                log.info("cannot read why pods are stuck: %s", printable(error))
            self._due = now + self._refusals.failed()
        except ElasticError as error:
            log.debug("cannot read why pods are stuck: %s", printable(error))
        return self.warnings.get(uid, "")
