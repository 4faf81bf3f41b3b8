"""The clouds' metadata services: how each announces a reclaim, which one is here, and the watch over it.

Of HTTP they need one small request at a time to a link-local address, bounded in time. asyncio's streams carry the
bytes and :mod:`http.client` reads them. Not urllib or a client library: they ask through the proxy that the environment
names, which a link-local address must never be asked through; a thread that waits for an answer would hold up the
agent's end; and a further dependency would have to be in every user's image.
"""

from __future__ import annotations

import asyncio
import http.client
import io
import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

from typing_extensions import override

from elastic_runtime.clock import utc_now
from elastic_runtime.documents import parse_json
from elastic_runtime.errors import ClusterUnavailable, InvalidSettings
from elastic_runtime.printable import printable
from elastic_runtime.run.rundir import ReclaimNotice
from elastic_runtime.run.spec import NoticeService

TIMEOUT = 2.0
"""Seconds for a request, from dialling to the last byte of the answer."""
MAX_ANSWER = 65536
"""Bytes. A metadata service that has more to say is none."""
TOKEN_LIFE = 21600
"""Seconds that a session token is asked for: the most that AWS and Alibaba give."""
TOKEN_MARGIN = 600.0
"""Seconds before its end at which a token is renewed."""
_NO_ANSWER = (OSError, EOFError, asyncio.LimitOverrunError, http.client.HTTPException, ValueError, OverflowError)
"""What comes of none in time, or none that is HTTP; the last of a chunk larger than any memory."""
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)[ \t]*\r\n", re.IGNORECASE)


class Service(Protocol):
    """Client of one cloud's metadata service, which announces that the machine will be reclaimed."""

    async def detect(self) -> bool:
        """Return whether this machine has the service. Sends one or two requests.

        Raises:
            ClusterUnavailable: the service does not answer, which means that this machine does not have it.
        """

    async def look(self) -> ReclaimNotice | None:
        """Query the service once, or block until its answer changes. Return the notice, or None.

        Raises:
            ClusterUnavailable: the service does not answer, or sends invalid data.
        """


@dataclass(frozen=True, slots=True)
class Answer:
    """HTTP response of a metadata service."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def text(self) -> str:
        """The body. Raises ClusterUnavailable when it is no text."""
        try:
            return self.body.decode("utf-8").strip()
        except UnicodeDecodeError as error:
            raise ClusterUnavailable(f"a metadata service answered what is not text: {self.body[:80]!r}") from error


class MetadataClient:
    """Sends requests to one service.

    Args:
        base: ``http://ADDRESS[:PORT]``; an address, not a name: looking one up can block for long.
        host: what the Host header says; None: as ``base``.
    """

    def __init__(self, base: str, host: str | None = None) -> None:
        parts = urlsplit(base)
        self._address, self._port = parts.hostname or "", parts.port or 80
        self._host = host or parts.netloc
        self.base = base

    async def request(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, *, max_wait: float = TIMEOUT
    ) -> Answer:
        """Send one request.

        Args:
            method: ``GET`` or ``PUT``, the latter without a body.
            path: with its query.
            headers: on top of those that HTTP wants.
            max_wait: seconds.

        Raises:
            ClusterUnavailable: no answer in time, or none that is HTTP.
        """
        own = {"Host": self._host, "Connection": "close", **({"Content-Length": "0"} if method == "PUT" else {})}
        fields = "".join(f"{name}: {value}\r\n" for name, value in {**own, **(headers or {})}.items())
        try:
            async with asyncio.timeout(max_wait):
                received = await self._exchange(f"{method} {path} HTTP/1.1\r\n{fields}\r\n".encode("latin-1"))
            return _parse(received, method)
        except _NO_ANSWER as error:
            raise ClusterUnavailable(f"{method} {self.base}{path}: {error!r}") from error

    async def _exchange(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(self._address, self._port, limit=MAX_ANSWER)
        try:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = _LENGTH.search(head)  # or all until the service hangs up, as we have asked it to
            wanted = min(int(length[1]), MAX_ANSWER) if length else MAX_ANSWER
            body = b""
            while len(body) < wanted and (more := await reader.read(wanted - len(body))):
                body += more
            return head + body
        finally:
            writer.transport.abort()  # also when cancelled: there is nothing left to flush


class _Received:
    """Received bytes, as the socket that :class:`http.client.HTTPResponse` reads from."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, _mode: str) -> io.BytesIO:
        return io.BytesIO(self._data)


def _parse(received: bytes, method: str) -> Answer:
    sock: Any = _Received(received)
    with http.client.HTTPResponse(sock, method=method) as response:
        response.begin()
        body = response.read()
        return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, body)


class TokenSession:
    """Session-oriented requests: AWS's IMDSv2, which Alibaba's hardened mode has taken over, but for the names.

    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-metadata-v2-how-it-works.html

    Args:
        client: to send with.
        prefix: of the headers' names: ``X-aws-ec2-metadata-token``.
        clock: monotonic seconds.
    """

    def __init__(self, client: MetadataClient, prefix: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._prefix, self._clock = client, prefix, clock
        self._token: str | None = None
        self._renew_at = 0.0

    async def open(self) -> Answer:
        """Get a token. Returns the answer that it came with. Raises ClusterUnavailable."""
        self._token = None
        lifetime = {f"{self._prefix}-ttl-seconds": str(TOKEN_LIFE)}
        answer = await self._client.request("PUT", "/latest/api/token", lifetime)
        if answer.status != http.client.OK or not answer.text.isprintable() or not answer.text:
            raise ClusterUnavailable(f"{self._client.base} gives no session token: it answered {answer.status}")
        self._token, self._renew_at = answer.text, self._clock() + TOKEN_LIFE - TOKEN_MARGIN
        return answer

    async def get(self, path: str) -> Answer:
        """Ask, with a token that is renewed in time, or once the service does not know it any more.

        Raises:
            ClusterUnavailable: no answer, or no token.
        """
        if self._token is None or self._clock() >= self._renew_at:
            await self.open()
        answer = await self._client.request("GET", path, {self._prefix: self._token or ""})
        if answer.status == http.client.UNAUTHORIZED:
            await self.open()
            answer = await self._client.request("GET", path, {self._prefix: self._token or ""})
        return answer


def unexpected(what: str, answer: Answer) -> ClusterUnavailable:
    """The error for an answer that makes no sense.

    Such a one is never taken for a notice: whatever answers so might do it for ever, and on every machine.
    """
    return ClusterUnavailable(f"{what} answered {answer.status}: {answer.body[:80]!r}")


log = logging.getLogger(__name__)

ADDRESS = "http://169.254.169.254"
"""Of all but Alibaba's; ``metadata.google.internal`` stands for it, too."""


# Spot interruptions of EC2, by the instance metadata service, version 2.
#
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html,
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/rebalance-recommendations.html
#
# In a pod that is not on its host's network, the token arrives only where the instance allows two hops
# (``HttpPutResponseHopLimit: 2``, EKS's default for managed node groups).

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
        return None if time is None else ReclaimNotice("aws", time, punctual=True)


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


# Preemptible instances of Alibaba Cloud ECS, by its metadata service in hardened mode.
#
# https://www.alibabacloud.com/help/en/ecs/user-guide/query-the-interruption-events-of-preemptible-instances

ALIBABA_ADDRESS = "http://100.100.100.200"
ALIBABA_TOKEN = "X-aliyun-ecs-metadata-token"  # noqa: S105 - the name of a header
ALIBABA_TERMINATION = "/latest/meta-data/instance/spot/termination-time"


class Alibaba(Service):
    """The release of the instance, announced five minutes ahead."""

    def __init__(self, address: str | None = None) -> None:
        self._session = TokenSession(MetadataClient(address or ALIBABA_ADDRESS), ALIBABA_TOKEN)

    @override
    async def detect(self) -> bool:
        # The address belongs to others elsewhere (100.64.0.0/10), so a token alone does not say enough.
        await self.look()
        return True

    @override
    async def look(self) -> ReclaimNotice | None:
        answer = await self._session.get(ALIBABA_TERMINATION)
        if answer.status == http.client.NOT_FOUND:
            return None
        if answer.status != http.client.OK:
            raise unexpected(ALIBABA_TERMINATION, answer)
        try:
            return ReclaimNotice("alibaba", utc_time(answer.text), punctual=True)
        except ValueError as error:
            raise unexpected(ALIBABA_TERMINATION, answer) from error


# Preemption of Spot and preemptible VMs of Google Compute Engine, by its metadata server.
#
# https://cloud.google.com/compute/docs/instances/create-use-spot#detect-preemption,
# https://cloud.google.com/compute/docs/metadata/querying-metadata#waitforchange

GCP_HOST = "metadata.google.internal"
GCP_PREEMPTED = "/computeMetadata/v1/instance/preempted"
GCP_FLAVOR = {"Metadata-Flavor": "Google"}
GCP_TIME = timedelta(seconds=15)
"""What a pod has of the 30 s between the word and the end: kubelet keeps the rest for what the node itself needs."""
GCP_WAIT = 60
"""Seconds for which the server keeps a request that waits for a change."""


class Gcp(Service):
    """The preemption, heard of in the moment in which it begins."""

    def __init__(self, address: str | None = None, now: Callable[[], datetime] = utc_now) -> None:
        self._client = MetadataClient(address or ADDRESS, GCP_HOST)
        self._now = now
        self._etag: str | None = None

    @override
    async def detect(self) -> bool:
        answer = await self._client.request("GET", GCP_PREEMPTED, GCP_FLAVOR)
        return answer.status == http.client.OK and answer.headers.get("metadata-flavor") == "Google"

    @override
    async def look(self) -> ReclaimNotice | None:
        """Return at once the first time, and later when the value changes, or after :data:`GCP_WAIT`."""
        etag, self._etag = self._etag, None  # Should this fail, the next look is a first one.
        answer = await self._ask(etag)
        if answer.status != http.client.OK or answer.text not in ("TRUE", "FALSE"):
            raise unexpected(GCP_PREEMPTED, answer)
        self._etag = answer.headers.get("etag")
        return ReclaimNotice("gcp", self._now() + GCP_TIME, punctual=True) if answer.text == "TRUE" else None

    async def _ask(self, etag: str | None) -> Answer:
        if etag is None:
            return await self._client.request("GET", GCP_PREEMPTED, GCP_FLAVOR)
        query = f"?wait_for_change=true&timeout_sec={GCP_WAIT}&last_etag={quote(etag)}"
        return await self._client.request("GET", GCP_PREEMPTED + query, GCP_FLAVOR, max_wait=GCP_WAIT + TIMEOUT)


# Evictions of Azure Spot VMs, by the Scheduled Events of its instance metadata service.
#
# https://learn.microsoft.com/en-us/azure/virtual-machines/linux/scheduled-events

AZURE_HEADERS = {"Metadata": "true"}
AZURE_INSTANCE = "/metadata/instance?api-version=2021-02-01"
AZURE_EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
AZURE_EVENTS_TIMEOUT = 125.0
"""Seconds. The first request turns the events on for this machine, which takes up to two minutes."""
AZURE_TAKEN = ("Preempt", "Terminate")
"""Types of events after which the machine does not come back: an eviction, and a scale set's own scale-in."""
AZURE_AHEAD = ("Scheduled", "Started")


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
        document = await self._get(AZURE_EVENTS, AZURE_EVENTS_TIMEOUT)
        try:
            deadlines = [self._deadline(event) for event in document["Events"] if _is_end_of(own, event)]
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise ClusterUnavailable(
                f"{AZURE_EVENTS} answered events that make no sense: {printable(document)}"
            ) from error
        return ReclaimNotice("azure", min(deadlines), punctual=True) if deadlines else None

    async def _read_name(self) -> str:
        document = await self._get(AZURE_INSTANCE, TIMEOUT)
        try:
            self._name = str(document["compute"]["name"])
        except (TypeError, KeyError) as error:
            raise ClusterUnavailable(f"{AZURE_INSTANCE} does not return the name of this machine") from error
        return self._name

    async def _get(self, path: str, max_wait: float) -> Any:
        answer = await self._client.request("GET", path, AZURE_HEADERS, max_wait=max_wait)
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
    return event["EventType"] in AZURE_TAKEN and event["EventStatus"] in AZURE_AHEAD and name.casefold() in resources


# Which there is, and one watch over the one that was found or named.

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
