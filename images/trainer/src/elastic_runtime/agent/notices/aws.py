"""Spot interruptions of EC2, by the instance metadata service, version 2.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html,
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/rebalance-recommendations.html

In a pod that is not on its host's network, the token arrives only where the instance allows two hops
(``HttpPutResponseHopLimit: 2``, EKS's default for managed node groups).
"""

from __future__ import annotations

import http.client
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from typing_extensions import override

from elastic_runtime.agent.notices.metadata import MetadataClient, Service, TokenSession, unexpected
from elastic_runtime.clock import utc_now
from elastic_runtime.documents import parse_json
from elastic_runtime.run.rundir import ReclaimNotice

ADDRESS = "http://169.254.169.254"
TOKEN = "X-aws-ec2-metadata-token"  # noqa: S105 - the name of a header
ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
REBALANCE_TIME = timedelta(seconds=120)
"""A recommendation has no deadline. So much a worker has at least: an interruption itself is announced so far ahead."""


class _Ec2(Service):
    def __init__(self, address: str | None = None) -> None:
        self._session = TokenSession(MetadataClient(address or ADDRESS), TOKEN)

    @override
    async def detect(self) -> bool:
        # Whatever else answers a PUT there does not repeat the token's lifetime.
        return f"{TOKEN}-ttl-seconds".lower() in (await self._session.open()).headers

    async def _announced(self, path: str, field: str) -> datetime | None:
        """The time in that field of the document there; None while there is no document."""
        answer = await self._session.get(path)
        if answer.status == http.client.NOT_FOUND:
            return None
        if answer.status != http.client.OK:
            raise unexpected(path, answer)
        try:
            return utc_time(parse_json(answer.text)[field])
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise unexpected(path, answer) from error


class Aws(_Ec2):
    """The interruption itself, announced 120 s ahead."""

    @override
    async def look(self) -> ReclaimNotice | None:
        """Return one kind of notice, whether the machine will be terminated, stopped or hibernated."""
        time = await self._announced(ACTION, "time")
        return None if time is None else ReclaimNotice("aws", time)


class AwsRebalance(_Ec2):
    """The interruption, and recommendations to rebalance, which may come long before one, or without.

    To be asked for by name: a worker that leaves on a recommendation needs somebody who replaces its machine.
    """

    def __init__(self, address: str | None = None, now: Callable[[], datetime] = utc_now) -> None:
        super().__init__(address)
        self._interruption, self._now = Aws(address), now
        self._begun_at: datetime | None = None

    @override
    async def look(self) -> ReclaimNotice | None:
        self._begun_at = self._begun_at or self._now()
        if notice := await self._interruption.look():
            return notice
        recommended = await self._announced(REBALANCE, "noticeTime")
        # One that was there before this worker did not keep it from being put here; it will not go away either.
        if recommended is None or recommended < self._begun_at:
            return None
        return ReclaimNotice("aws-rebalance", self._now() + REBALANCE_TIME)


def utc_time(text: str) -> datetime:
    """An ISO 8601 time; one without a zone is UTC. Raises ValueError, or TypeError for what is no text."""
    time = datetime.fromisoformat(text)
    try:
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("a time before the year 1, or after 9999") from error
