"""What all metadata services have in common: requests, which one it is, and the watch over it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise

import pytest

from elastic_runtime.agent.notices import clouds
from elastic_runtime.agent.notices.clouds import ADDRESS as LINK_LOCAL
from elastic_runtime.agent.notices.clouds import (
    Alibaba,
    Aws,
    Azure,
    Gcp,
    Metadata,
    MetadataClient,
    Service,
    cloud_notice,
    detect,
    watch,
)
from elastic_runtime.errors import ClusterUnavailable, InvalidSettings
from elastic_runtime.run.rundir import ReclaimNotice
from elastic_runtime.run.spec import NoticeService
from tests.unit.provider.virtual_time import run_virtually
from tests.unit.runtime.metadata_bench import (
    ACTION,
    LONG_AGO,
    NOW,
    SOON,
    Asked,
    AzureHost,
    Ec2,
    Gce,
    MetadataServer,
    Reply,
    action,
    answer,
    asking,
)


class TestRequests:
    def test_an_answer_ends_with_its_length_or_with_the_connection(self) -> None:
        async def ask(server: MetadataServer) -> bytes:
            return (await MetadataClient(server.base).request("GET", "/")).body

        async def chunked(_: Asked) -> bytes:
            return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nTRU\r\n1\r\nE\r\n0\r\n\r\n"

        async def unbounded(_: Asked) -> bytes:
            return b"HTTP/1.0 200 OK\r\n\r\nTRUE"

        async def open_end(_: Asked) -> bytes:
            await asyncio.sleep(0)
            return b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: keep-alive\r\n\r\nTRUE and what follows"

        assert [asking(reply, ask)[0] for reply in (chunked, unbounded, open_end)] == [b"TRUE"] * 3

    def test_a_service_that_does_not_answer_or_never_ends_is_left(self) -> None:
        async def silent(_: Asked) -> bytes:
            await asyncio.Event().wait()
            return b""

        async def endless(_: Asked) -> bytes:
            return b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000

        async def ask(server: MetadataServer, max_wait: float) -> str:
            with pytest.raises(ClusterUnavailable) as caught:
                await MetadataClient(server.base).request("GET", "/", max_wait=max_wait)
            return str(caught.value)

        assert "TimeoutError" in asking(silent, partial(ask, max_wait=0.1))[0]
        assert "LimitOverrunError" in asking(endless, partial(ask, max_wait=10.0))[0]

    def test_nobody_there_is_told_as_such(self) -> None:
        async def ask(server: MetadataServer) -> str:
            return server.base

        async def nothing(_: Asked) -> bytes:
            return b""

        base, _ = asking(nothing, ask)
        with pytest.raises(ClusterUnavailable, match="ConnectionRefusedError"):
            asyncio.run(MetadataClient(base).request("GET", "/"))

    def test_proxies_are_none_of_its_business(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")

        async def ask(server: MetadataServer) -> int:
            return (await MetadataClient(server.base).request("GET", "/")).status

        async def found(_: Asked) -> bytes:
            return answer(200)

        assert asking(found, ask)[0] == 200


class TestDetection:
    @pytest.mark.parametrize(
        ("host", "wanted"),
        [
            (Ec2({}), NoticeService.AWS),
            (Gce(("FALSE", "a")), NoticeService.GCP),
            (AzureHost(), NoticeService.AZURE),
            (Ec2({}, "X-aliyun-ecs-metadata-token"), NoticeService.ALIBABA),
        ],
    )
    def test_finds_the_cloud_that_it_is_in(self, host: Reply, wanted: NoticeService) -> None:
        async def tolerant(asked: Asked) -> bytes:
            try:
                return await host(asked)
            except KeyError:  # a header that this cloud's token wants is not there
                return answer(400)

        async def ask(server: MetadataServer) -> NoticeService | None:
            return await detect(every_service(server.base), (0.0,))

        assert asking(tolerant, ask)[0] is wanted

    @pytest.mark.parametrize("status", [200, 204, 302, 403, 404, 500])
    def test_is_not_taken_in_by_whatever_else_answers(self, status: int) -> None:
        async def reply(_: Asked) -> bytes:
            return answer(status, "<html>Please log in</html>")

        async def ask(server: MetadataServer) -> NoticeService | None:
            return await detect(every_service(server.base), (0.0,))

        assert asking(reply, ask)[0] is None

    def test_finds_one_that_is_not_ready_at_once(self) -> None:
        gce = Gce(("FALSE", "a"))
        refusals = [answer(503)] * 8

        async def reply(asked: Asked) -> bytes:
            return refusals.pop() if refusals else await gce(asked)

        async def ask(server: MetadataServer) -> NoticeService | None:
            return await detect({NoticeService.GCP: Gcp(server.base)}, (0.0, *[0.01] * 8))

        assert asking(reply, ask)[0] is NoticeService.GCP

    def test_nothing_is_asked_any_more_where_there_is_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(clouds.detect, "__defaults__", ((0.0, 0.0),))

        async def reply(_: Asked) -> bytes:
            return answer(404)

        async def ask(server: MetadataServer) -> ReclaimNotice | None:
            return await cloud_notice(Metadata(NoticeService.AUTO, server.base))

        notice, server = asking(reply, ask)
        assert notice is None
        assert len(server.asked) == 2 * 4

    def test_what_was_found_is_watched(self) -> None:
        aws = Ec2({ACTION: [answer(404), answer(404), action(datetime.now(UTC) + timedelta(seconds=100))]})

        async def tolerant(asked: Asked) -> bytes:
            return await aws(asked) if "x-aliyun-ecs-metadata-token-ttl-seconds" not in asked.headers else answer(400)

        async def ask(server: MetadataServer) -> ReclaimNotice | None:
            return await cloud_notice(Metadata(NoticeService.AUTO, server.base), interval=0.01)

        notice, server = asking(tolerant, ask)
        assert notice is not None
        assert notice.source == "aws"
        assert server.paths().count(f"GET {ACTION}") == 3


def every_service(base: str) -> dict[NoticeService, Service]:
    return {
        NoticeService.AWS: Aws(base),
        NoticeService.GCP: Gcp(base),
        NoticeService.AZURE: Azure(base),
        NoticeService.ALIBABA: Alibaba(base),
    }


class TestWatch:
    def watched(self, aws: Reply, interval: float = 0.01) -> tuple[ReclaimNotice, MetadataServer]:
        async def ask(server: MetadataServer) -> ReclaimNotice:
            return await watch(Aws(server.base), "aws", interval, lambda: NOW)

        return asking(aws, ask)

    def test_a_service_that_fails_is_asked_on_and_complained_of_once(self, caplog: pytest.LogCaptureFixture) -> None:
        documents = [answer(404), *[answer(500)] * 3, answer(404), answer(503), action(SOON)]
        with caplog.at_level("INFO"):
            notice, server = self.watched(Ec2({ACTION: documents}))
        assert notice == ReclaimNotice("aws", SOON, punctual=True)
        assert server.paths().count(f"GET {ACTION}") == 7
        assert [record.message.partition(":")[0] for record in caplog.records] == [
            *["the metadata service of aws", "the metadata service of aws answers again"] * 2
        ]

    def test_a_notice_of_long_ago_is_a_false_alarm(self, caplog: pytest.LogCaptureFixture) -> None:
        documents = [action(LONG_AGO), action(LONG_AGO), action(NOW - timedelta(seconds=59))]
        notice, _ = self.watched(Ec2({ACTION: documents}))
        assert notice.deadline == NOW - timedelta(seconds=59)
        assert len([record for record in caplog.records if "it is still here" in record.message]) == 1

    def test_looks_begin_at_the_interval(self) -> None:
        moments: list[float] = []

        class Slow:
            async def detect(self) -> bool:
                return True

            async def look(self) -> ReclaimNotice | None:
                moments.append(asyncio.get_running_loop().time())
                await asyncio.sleep(0.4)
                return ReclaimNotice("aws", SOON) if len(moments) == 4 else None

        async def main() -> None:
            await watch(Slow(), "aws", 1.0, lambda: NOW)

        run_virtually(main())
        assert [later - earlier for earlier, later in pairwise(moments)] == pytest.approx([1.0] * 3)


class TestSetting:
    @pytest.mark.parametrize(
        ("text", "wanted"),
        [
            ("none", Metadata()),
            ("auto", Metadata(NoticeService.AUTO)),
            ("aws-rebalance", Metadata(NoticeService.AWS_REBALANCE)),
            ("aws=http://[fd00:ec2::254]", Metadata(NoticeService.AWS, "http://[fd00:ec2::254]")),
        ],
    )
    def test_names_a_service_and_maybe_an_address(self, text: str, wanted: Metadata) -> None:
        assert Metadata.parse(text) == wanted

    def test_a_service_that_nobody_knows_is_refused(self) -> None:
        with pytest.raises(InvalidSettings, match=r"'ibm' is not a metadata service.*auto, none, aws"):
            Metadata.parse("ibm")

    @pytest.mark.parametrize("address", ["169.254.169.254", "https://169.254.169.254", "http://", "http://a:b"])
    def test_an_address_that_cannot_be_dialled_is_refused(self, address: str) -> None:
        with pytest.raises(InvalidSettings, match="is not an address"):
            Metadata.parse(f"aws={address}")

    def test_the_addresses_are_the_clouds_own(self) -> None:
        clients = {
            "aws": Aws()._session._client,
            "alibaba": Alibaba()._session._client,
            "azure": Azure()._client,
            "gcp": Gcp()._client,
        }
        assert {name: client.base for name, client in clients.items()} == {
            "aws": LINK_LOCAL,
            "azure": "http://169.254.169.254",
            "gcp": "http://169.254.169.254",
            "alibaba": "http://100.100.100.200",
        }
        assert LINK_LOCAL == "http://169.254.169.254"
        assert clients["gcp"]._host == "metadata.google.internal"
        assert clouds.TIMEOUT <= 2
        assert MetadataClient("http://[fd00:ec2::254]:8080")._address == "fd00:ec2::254"
