"""Preemption of Spot and preemptible VMs of Google Compute Engine, by its metadata server.

https://cloud.google.com/compute/docs/instances/create-use-spot#detect-preemption,
https://cloud.google.com/compute/docs/metadata/querying-metadata#waitforchange
"""

from __future__ import annotations

import http.client
from collections.abc import Callable
from datetime import datetime, timedelta
from urllib.parse import quote

from typing_extensions import override

from elastic_runtime.agent.notices.metadata import TIMEOUT, Answer, MetadataClient, Service, unexpected
from elastic_runtime.clock import utc_now
from elastic_runtime.run.rundir import ReclaimNotice

ADDRESS = "http://169.254.169.254"
"""What ``metadata.google.internal`` stands for."""
HOST = "metadata.google.internal"
PREEMPTED = "/computeMetadata/v1/instance/preempted"
FLAVOR = {"Metadata-Flavor": "Google"}
TIME = timedelta(seconds=15)
"""What a pod has of the 30 s between the word and the end: kubelet keeps the rest for what the node itself needs."""
WAIT = 60
"""Seconds for which the server keeps a request that waits for a change."""


class Gcp(Service):
    """The preemption, heard of in the moment in which it begins."""

    def __init__(self, address: str | None = None, now: Callable[[], datetime] = utc_now) -> None:
        self._client = MetadataClient(address or ADDRESS, HOST)
        self._now = now
        self._etag: str | None = None

    @override
    async def detect(self) -> bool:
        answer = await self._client.request("GET", PREEMPTED, FLAVOR)
        return answer.status == http.client.OK and answer.headers.get("metadata-flavor") == "Google"

    @override
    async def look(self) -> ReclaimNotice | None:
        """Return at once the first time, and later when the value changes, or after :data:`WAIT`."""
        etag, self._etag = self._etag, None  # Should this fail, the next look is a first one.
        answer = await self._ask(etag)
        if answer.status != http.client.OK or answer.text not in ("TRUE", "FALSE"):
            raise unexpected(PREEMPTED, answer)
        self._etag = answer.headers.get("etag")
        return ReclaimNotice("gcp", self._now() + TIME) if answer.text == "TRUE" else None

    async def _ask(self, etag: str | None) -> Answer:
        if etag is None:
            return await self._client.request("GET", PREEMPTED, FLAVOR)
        query = f"?wait_for_change=true&timeout_sec={WAIT}&last_etag={quote(etag)}"
        return await self._client.request("GET", PREEMPTED + query, FLAVOR, max_wait=WAIT + TIMEOUT)
