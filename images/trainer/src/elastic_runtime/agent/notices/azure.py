"""Evictions of Azure Spot VMs, by the Scheduled Events of its instance metadata service.

https://learn.microsoft.com/en-us/azure/virtual-machines/linux/scheduled-events
"""

from __future__ import annotations

import http.client
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from typing_extensions import override

from elastic_runtime.agent.notices.metadata import TIMEOUT, MetadataClient, Service, unexpected
from elastic_runtime.clock import utc_now
from elastic_runtime.documents import parse_json
from elastic_runtime.errors import ClusterUnavailable
from elastic_runtime.printable import printable
from elastic_runtime.run.rundir import ReclaimNotice

ADDRESS = "http://169.254.169.254"
HEADERS = {"Metadata": "true"}
INSTANCE = "/metadata/instance?api-version=2021-02-01"
EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
EVENTS_TIMEOUT = 125.0
"""Seconds. The first request turns the events on for this machine, which takes up to two minutes."""
TAKEN = ("Preempt", "Terminate")
"""Types of events after which the machine does not come back: an eviction, and a scale set's own scale-in."""
AHEAD = ("Scheduled", "Started")


class Azure(Service):
    """Evictions of this machine, announced some 30 s ahead; the list has those of its neighbours, too."""

    def __init__(self, address: str | None = None, now: Callable[[], datetime] = utc_now) -> None:
        self._client = MetadataClient(address or ADDRESS)
        self._now = now
        self._name: str | None = None

    @override
    async def detect(self) -> bool:
        await self._read_name()
        return True

    @override
    async def look(self) -> ReclaimNotice | None:
        own = self._name or await self._read_name()
        # The first answer may be on its way for two minutes; later ones come at once.
        document = await self._get(EVENTS, EVENTS_TIMEOUT)
        try:
            deadlines = [self._deadline(event) for event in document["Events"] if _is_end_of(own, event)]
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise ClusterUnavailable(f"{EVENTS} answered events that make no sense: {printable(document)}") from error
        return ReclaimNotice("azure", min(deadlines)) if deadlines else None

    async def _read_name(self) -> str:
        document = await self._get(INSTANCE, TIMEOUT)
        try:
            self._name = str(document["compute"]["name"])
        except (TypeError, KeyError) as error:
            raise ClusterUnavailable(f"{INSTANCE} does not return the name of this machine") from error
        return self._name

    async def _get(self, path: str, max_wait: float) -> Any:
        answer = await self._client.request("GET", path, HEADERS, max_wait=max_wait)
        if answer.status != http.client.OK:
            raise unexpected(path, answer)
        try:
            return parse_json(answer.text)
        except ValueError as error:
            raise unexpected(path, answer) from error

    def _deadline(self, event: Mapping[str, Any]) -> datetime:
        """``NotBefore`` in the form of RFC 1123; empty once the event has begun."""
        text = event["NotBefore"]
        if not text:
            return self._now()
        time = parsedate_to_datetime(text)
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def _is_end_of(name: str, event: Mapping[str, Any]) -> bool:
    resources = {str(resource).casefold() for resource in event["Resources"]}
    return event["EventType"] in TAKEN and event["EventStatus"] in AHEAD and name.casefold() in resources
