"""Preemptible instances of Alibaba Cloud ECS, by its metadata service in hardened mode.

https://www.alibabacloud.com/help/en/ecs/user-guide/query-the-interruption-events-of-preemptible-instances
"""

from __future__ import annotations

import http.client

from typing_extensions import override

from elastic_runtime.agent.notices.aws import utc_time
from elastic_runtime.agent.notices.metadata import MetadataClient, Service, TokenSession, unexpected
from elastic_runtime.run.rundir import ReclaimNotice

ADDRESS = "http://100.100.100.200"
TOKEN = "X-aliyun-ecs-metadata-token"  # noqa: S105 - the name of a header
TERMINATION = "/latest/meta-data/instance/spot/termination-time"


class Alibaba(Service):
    """The release of the instance, announced five minutes ahead."""

    def __init__(self, address: str | None = None) -> None:
        self._session = TokenSession(MetadataClient(address or ADDRESS), TOKEN)

    @override
    async def detect(self) -> bool:
        # The address belongs to others elsewhere (100.64.0.0/10), so a token alone does not say enough.
        await self.look()
        return True

    @override
    async def look(self) -> ReclaimNotice | None:
        answer = await self._session.get(TERMINATION)
        if answer.status == http.client.NOT_FOUND:
            return None
        if answer.status != http.client.OK:
            raise unexpected(TERMINATION, answer)
        try:
            return ReclaimNotice("alibaba", utc_time(answer.text))
        except ValueError as error:
            raise unexpected(TERMINATION, answer) from error
