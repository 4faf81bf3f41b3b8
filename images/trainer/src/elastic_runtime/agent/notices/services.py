"""The clouds' metadata services: which there is, and one watch over the one that was found or named."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from elastic_runtime.agent.notices.alibaba import Alibaba
from elastic_runtime.agent.notices.aws import Aws, AwsRebalance
from elastic_runtime.agent.notices.azure import Azure
from elastic_runtime.agent.notices.gcp import Gcp
from elastic_runtime.agent.notices.metadata import Service
from elastic_runtime.clock import utc_now
from elastic_runtime.errors import ClusterUnavailable, InvalidSettings
from elastic_runtime.run.rundir import ReclaimNotice
from elastic_runtime.run.spec import NoticeService

log = logging.getLogger(__name__)

INTERVAL = 5.0
"""Seconds between the begins of two looks, as AWS recommends; a service that answers when something changes is asked
again at once when it has kept us waiting for longer."""
DETECTION = (0.0, 5.0, 25.0)
"""Seconds before each attempt to find a service. One could do, but GKE's metadata server does not answer a pod in its
first seconds."""
STALE = timedelta(seconds=60)
"""A machine that is still here so long after a deadline was not meant, or not taken."""


_SERVICES: Mapping[NoticeService, Callable[[str | None], Service]] = {
    NoticeService.AWS: Aws,
    NoticeService.AWS_REBALANCE: AwsRebalance,
    NoticeService.GCP: Gcp,
    NoticeService.AZURE: Azure,
    NoticeService.ALIBABA: Alibaba,
}
_DETECTABLE = (NoticeService.AWS, NoticeService.GCP, NoticeService.AZURE, NoticeService.ALIBABA)


@dataclass(frozen=True, slots=True)
class Metadata:
    """Which metadata service to ask."""

    service: NoticeService = NoticeService.NONE
    address: str | None = None
    """``http://ADDRESS[:PORT]`` instead of the service's own."""

    @classmethod
    def parse(cls, text: str) -> Metadata:
        """Read ``SERVICE`` or ``SERVICE=ADDRESS``. Raises InvalidSettings."""
        name, _, address = text.partition("=")
        if name not in tuple(NoticeService):
            known = ", ".join(NoticeService)
            raise InvalidSettings("metadata", f"{name!r} is not a metadata service", f"Write one of {known}")
        if address and not re.fullmatch(r"http://(\[[0-9a-fA-F:]+\]|[^/:]+)(:\d+)?", address):
            raise InvalidSettings(
                "metadata", f"{address!r} is not an address of one", "Write http://ADDRESS or :PORT too"
            )
        return cls(NoticeService(name), address or None)


NO_METADATA = Metadata()


async def cloud_notice(metadata: Metadata, interval: float = INTERVAL) -> ReclaimNotice | None:
    """Wait for a notice of the cloud; None at once where nobody asked for one, soon where there is no service.

    Args:
        metadata: which service.
        interval: seconds between the begins of two looks.
    """
    match metadata.service:
        case NoticeService.NONE:
            return None
        case NoticeService.AUTO:
            services = {name: _SERVICES[name](metadata.address) for name in _DETECTABLE}
            found = await detect(services)
            if found is None:
                log.info("no metadata service answers: a reclaim is noticed by SIGTERM alone")
                return None
            log.info("found the metadata service of %s", found)
            return await watch(services[found], found, interval)
        case named:
            return await watch(_SERVICES[named](metadata.address), named, interval)


async def detect(
    services: Mapping[NoticeService, Service], pauses: tuple[float, ...] = DETECTION
) -> NoticeService | None:
    """Which of them is here, if any."""
    for pause in pauses:
        await asyncio.sleep(pause)
        answers = await asyncio.gather(*map(_is_here, services.values()))
        if found := [name for name, here in zip(services, answers, strict=True) if here]:
            return found[0]
    return None


async def _is_here(service: Service) -> bool:
    try:
        return await service.detect()
    except ClusterUnavailable as error:
        log.debug("%s", error)
        return False


async def watch(service: Service, name: str, interval: float, now: Callable[[], datetime] = utc_now) -> ReclaimNotice:
    """Look until there is a notice. A service that fails is asked on, and the log says so once.

    Args:
        service: to ask.
        name: for people.
        interval: seconds between the begins of two looks.
        now: wall clock.
    """
    loop = asyncio.get_running_loop()
    failing, ignored = False, None
    while True:
        begun = loop.time()
        try:
            notice = await service.look()
        except ClusterUnavailable as error:
            log.log(logging.DEBUG if failing else logging.WARNING, "the metadata service of %s: %s", name, error)
            failing = True
        else:
            if failing:
                log.info("the metadata service of %s answers again", name)
            failing = False
            if notice is not None and notice.deadline > now() - STALE:
                return notice
            if notice != ignored and notice is not None:
                log.warning("%s announced the end of this machine for %s; it is still here", name, notice.deadline)
            ignored = notice
        await asyncio.sleep(interval - (loop.time() - begun))
