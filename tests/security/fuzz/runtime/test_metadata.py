"""What answers at a metadata service's address: a notice comes of it, none, or ClusterUnavailable."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.agent.notices.clouds import Alibaba, AwsRebalance, Azure, Gcp, MetadataClient
from elastic_runtime.errors import ClusterUnavailable
from elastic_runtime.run.rundir import ReclaimNotice
from tests.security.fuzz.inputs import inputs, spoiled, thorough

pytestmark = [pytest.mark.filterwarnings("ignore:Generating overly large repr"), pytest.mark.timeout(600)]

TIME = "2026-11-21T12:00:00Z"
EVENT = {
    "EventType": "Preempt",
    "EventStatus": "Scheduled",
    "Resources": ["machine"],
    "NotBefore": "Sat, 21 Nov 2026 12:00:00 GMT",
}
DOCUMENTS: dict[str, tuple[Any, list[object]]] = {
    "aws": (AwsRebalance, [{"action": "terminate", "time": TIME}, {"noticeTime": TIME}]),
    "azure": (Azure, [{"compute": {"name": "machine"}, "Events": [EVENT]}]),
    "gcp": (Gcp, [b"TRUE", b"FALSE"]),
    "alibaba": (Alibaba, [TIME.encode()]),
}
HEADS = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\nETag: abc\r\nMetadata-Flavor: Google\r\n\r\n",
    b"HTTP/1.1 404 Not Found\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"f" * 20 + b"\r\n",
    b"HTTP/1.1 401 Unauthorized\r\nTransfer-Encoding: chunked\r\n\r\n",
]


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.mark.parametrize("cloud", DOCUMENTS)
def test_an_answer_is_a_notice_or_none(cloud: str, loop: asyncio.Runner) -> None:
    service, documents = DOCUMENTS[cloud]
    whole = st.tuples(st.just(b"HTTP/1.1 200 OK\r\n\r\n"), inputs(*documents)).map(b"".join)
    answers = whole | st.tuples(spoiled(HEADS), inputs(*documents)).map(b"".join)

    @thorough
    @given(st.lists(answers, min_size=1, max_size=3))
    def holds(received: list[bytes]) -> None:
        async def exchange(client: MetadataClient, request: bytes) -> bytes:
            assert request.count(b"\r\n\r\n") == 1, "nothing of an answer becomes a request of its own"
            return received[0] if len(received) == 1 else received.pop(0)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MetadataClient, "_exchange", exchange)
            asked = service("http://127.0.0.1:1")
            for ask in (asked.detect, asked.look, asked.look):
                with contextlib.suppress(ClusterUnavailable):
                    assert isinstance(loop.run(ask()), ReclaimNotice | bool | None)

    holds()
