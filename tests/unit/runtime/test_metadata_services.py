"""The clouds' metadata services, against servers that answer as theirs do."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest

from elastic_runtime.agent.notices.clouds import Alibaba, Aws, AwsRebalance, Azure, Gcp, MetadataClient, TokenSession
from elastic_runtime.errors import ClusterUnavailable
from elastic_runtime.run.rundir import ReclaimNotice
from tests.unit.runtime.metadata_bench import (
    ACTION,
    EVENTS,
    INSTANCE,
    NOT_FOUND,
    NOW,
    PREEMPTED,
    REBALANCE,
    SOON,
    TERMINATION,
    Asked,
    AzureHost,
    Ec2,
    Gce,
    MetadataServer,
    action,
    answer,
    asking,
    event,
    looks,
    max_wait,
    told,
)

WAITING = f"GET {PREEMPTED}?wait_for_change=true&timeout_sec=60&last_etag="


class TestAws:
    def test_asks_with_a_token_and_finds_nothing_until_the_notice(self) -> None:
        aws = Ec2({ACTION: [answer(404, NOT_FOUND), answer(404, NOT_FOUND), action(SOON)]})
        seen, server = looks(Aws, aws, 3)
        assert seen == [None, None, ReclaimNotice("aws", SOON, punctual=True)]
        assert server.paths() == ["PUT /latest/api/token", *[f"GET {ACTION}"] * 3]
        assert server.asked[0].headers["x-aws-ec2-metadata-token-ttl-seconds"] == "21600"
        assert server.asked[1].headers["x-aws-ec2-metadata-token"] == "token-1"

    @pytest.mark.parametrize("what", ["terminate", "stop", "hibernate"])
    def test_whatever_is_to_become_of_the_machine_takes_the_worker(self, what: str) -> None:
        seen, _ = looks(Aws, Ec2({ACTION: [action(SOON, what)]}))
        assert seen == [ReclaimNotice("aws", SOON, punctual=True)]

    def test_gets_another_token_when_the_service_has_forgotten_it(self) -> None:
        aws = Ec2({ACTION: [action(SOON)]})
        aws.valid = {"token-2"}
        seen, server = looks(Aws, aws)
        assert seen == [ReclaimNotice("aws", SOON, punctual=True)]
        assert server.paths() == [*["PUT /latest/api/token", f"GET {ACTION}"] * 2]

    def test_renews_its_token_in_time(self) -> None:
        now = [0.0]

        async def ask(server: MetadataServer) -> None:
            session = TokenSession(MetadataClient(server.base), "X-aws-ec2-metadata-token", lambda: now[0])
            for moment in (0.0, 20999.0, 21000.0, 41999.0, 42000.0):
                now[0] = moment
                await session.get(ACTION)

        _, server = asking(Ec2({}), ask)
        used = [each.headers["x-aws-ec2-metadata-token"] for each in server.asked if each.method == "GET"]
        assert used == ["token-1", "token-1", "token-2", "token-2", "token-3"]

    @pytest.mark.parametrize(
        ("document", "error"),
        [
            (answer(500, "oops"), "answered 500: b'oops'"),
            (answer(503), "answered 503"),
            (answer(200, "<html>"), "answered 200: b'<html>'"),
            (answer(200, "[]"), "answered 200: b'[]'"),
            (answer(200, '{"action": "terminate"}'), "answered 200"),
            (answer(200, '{"action": "terminate", "time": "soon"}'), "answered 200"),
            (answer(200, '{"action": "terminate", "time": 7}'), "answered 200"),
            (answer(200, '{"time": "2026-11-21T12:02:00Z"}')[:-5], "IncompleteRead"),
            (b"HTTP/1.1 200 OK\r\nContent-Le", "IncompleteReadError"),
            (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "BadStatusLine"),
            (b"", "IncompleteReadError"),
            (answer(200, "\xff").replace(b"\xc3\xbf", b"\xff\xff"), "what is not text"),
        ],
    )
    def test_an_answer_that_makes_no_sense_is_no_notice_and_no_end(self, document: bytes, error: str) -> None:
        seen, _ = looks(Aws, Ec2({ACTION: [document, action(SOON)]}), 2)
        assert error in seen[0]
        assert seen[1] == ReclaimNotice("aws", SOON, punctual=True)

    @pytest.mark.parametrize("token", [answer(403), answer(200, ""), answer(200, "a\r\nb"), answer(400, "no")])
    def test_without_a_token_nothing_is_asked(self, token: bytes) -> None:
        async def reply(asked: Asked) -> bytes:
            return token

        seen, server = looks(Aws, reply)
        assert "gives no session token" in seen[0]
        assert server.paths() == ["PUT /latest/api/token"]

    def test_a_recommendation_to_rebalance_counts_when_it_was_asked_for(self) -> None:
        later = answer(200, json.dumps({"noticeTime": told(NOW + timedelta(seconds=1))}))
        recommended = Ec2({REBALANCE: [answer(404, NOT_FOUND), later]})
        seen, _ = looks(lambda base: AwsRebalance(base, lambda: NOW), recommended, 2)
        assert seen == [None, ReclaimNotice("aws-rebalance", NOW + timedelta(seconds=120))]
        seen, server = looks(Aws, Ec2({REBALANCE: [later]}))
        assert seen == [None]
        assert f"GET {REBALANCE}" not in server.paths()

    def test_a_recommendation_from_before_the_workers_time_does_not(self) -> None:
        earlier = answer(200, json.dumps({"noticeTime": told(NOW - timedelta(seconds=1))}))
        aws = Ec2({REBALANCE: [earlier], ACTION: [answer(404), answer(404), action(SOON)]})
        seen, _ = looks(lambda base: AwsRebalance(base, lambda: NOW), aws, 3)
        assert seen == [None, None, ReclaimNotice("aws", SOON, punctual=True)]


class TestAlibaba:
    def test_asks_with_a_token_and_finds_nothing_until_the_notice(self) -> None:
        documents = {TERMINATION: [answer(404, NOT_FOUND), answer(200, told(SOON))]}
        alibaba = Ec2(documents, "X-aliyun-ecs-metadata-token")
        seen, server = looks(Alibaba, alibaba, 2)
        assert seen == [None, ReclaimNotice("alibaba", SOON, punctual=True)]
        assert server.paths() == ["PUT /latest/api/token", *[f"GET {TERMINATION}"] * 2]
        assert server.asked[0].headers["x-aliyun-ecs-metadata-token-ttl-seconds"] == "21600"
        assert server.asked[1].headers["x-aliyun-ecs-metadata-token"] == "token-1"

    @pytest.mark.parametrize("document", [answer(500), answer(200, "<html>"), answer(200)])
    def test_an_answer_that_makes_no_sense_is_no_notice(self, document: bytes) -> None:
        seen, _ = looks(Alibaba, Ec2({TERMINATION: [document]}, "X-aliyun-ecs-metadata-token"))
        assert f"{TERMINATION} answered" in seen[0]


class TestGcp:
    def test_waits_for_the_change_from_what_it_knows(self) -> None:
        gce = Gce(("FALSE", "a1"), ("FALSE", "a1"), ("TRUE", "b/2"))
        seen, server = looks(lambda base: Gcp(base, lambda: NOW), gce, 3)
        assert seen == [None, None, ReclaimNotice("gcp", NOW + timedelta(seconds=15), punctual=True)]
        assert server.paths() == [f"GET {PREEMPTED}", f"{WAITING}a1", f"{WAITING}a1"]

    def test_begins_anew_after_an_error(self) -> None:
        gce = Gce(("FALSE", "a 1"), ("Service Unavailable", "x"), ("FALSE", "c3"), ("TRUE", "d4"))
        seen, server = looks(lambda base: Gcp(base, lambda: NOW), gce, 4)
        assert "answered 200: b'Service Unavailable'" in seen[1]
        assert server.paths() == [f"GET {PREEMPTED}", f"{WAITING}a%201", f"GET {PREEMPTED}", f"{WAITING}c3"]
        assert seen[3] is not None

    def test_waits_for_longer_than_for_an_answer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("elastic_runtime.agent.notices.clouds.GCP_WAIT", 1)
        gce = Gce(("FALSE", "a1"), ("TRUE", "b2"))

        async def reply(asked: Asked) -> bytes:
            if "wait_for_change" in asked.path:
                await asyncio.sleep(1.2)
            return await gce(asked)

        with max_wait(1.0):
            seen, _ = looks(lambda base: Gcp(base, lambda: NOW), reply, 2)
        assert seen == [None, ReclaimNotice("gcp", NOW + timedelta(seconds=15), punctual=True)]


def azure(base: str) -> Azure:
    return Azure(base, lambda: NOW)


def azure_notice(seconds: float) -> ReclaimNotice:
    return ReclaimNotice("azure", NOW + timedelta(seconds=seconds), punctual=True)


class TestAzure:
    def test_learns_its_name_once_and_finds_its_own_eviction(self) -> None:
        seen, server = looks(azure, AzureHost([], [], [event()]), 3)
        assert seen == [None, None, azure_notice(30)]
        assert server.paths() == ["GET /metadata/instance?api-version=2021-02-01", *[f"GET {EVENTS}"] * 3]

    @pytest.mark.parametrize(
        "other",
        [
            event(Resources=["aks-spot-1_1", "aks-spot-1_00"]),
            event(Resources=[]),
            event(EventType="Freeze"),
            event(EventType="Reboot"),
            event(EventStatus="Completed"),
            event(EventStatus="Canceled"),
        ],
    )
    def test_is_not_alarmed_by_what_does_not_take_this_machine(self, other: dict[str, Any]) -> None:
        assert looks(azure, AzureHost([other]))[0] == [None]

    @pytest.mark.parametrize(
        ("events", "seconds"),
        [
            ([event(EventStatus="Started", NotBefore="")], 0),
            ([event(EventType="Terminate")], 30),
            ([event(Resources=["other", "AKS-SPOT-1_0"])], 30),
            ([event(Resources=["other"], EventStatus="Started", NotBefore=""), event()], 30),
            ([event(), event(NotBefore="Sat, 21 Nov 2026 12:00:10 GMT"), event(EventType="Freeze")], 10),
        ],
    )
    def test_takes_the_earliest_of_its_own_events(self, events: list[dict[str, Any]], seconds: float) -> None:
        assert looks(azure, AzureHost(events))[0] == [azure_notice(seconds)]

    @pytest.mark.parametrize(
        ("events", "error"),
        [
            (answer(500, "internal"), "answered 500: b'internal'"),
            (answer(429), "answered 429"),
            (answer(200, "<html>"), "answered 200: b'<html>'"),
            (answer(200, "[]"), "make no sense"),
            (answer(200, '{"DocumentIncarnation": 1}'), "make no sense"),
            (answer(200, '{"Events": 7}'), "make no sense"),
            (answer(200, '{"Events": [{"EventType": "Preempt"}]}'), "make no sense"),
            ([event(NotBefore="soon")], "make no sense"),
        ],
    )
    def test_an_answer_that_makes_no_sense_is_no_notice_and_no_end(
        self, events: list[dict[str, Any]] | bytes, error: str
    ) -> None:
        seen, _ = looks(azure, AzureHost(events, [event()]), 2)
        assert error in seen[0]
        assert seen[1] == azure_notice(30)

    def test_asks_for_its_name_until_it_is_told(self) -> None:
        host = AzureHost([event()], instance={"error": "Gone"})

        async def ask(server: MetadataServer) -> Any:
            found = azure(server.base)
            with pytest.raises(ClusterUnavailable, match="does not return the name"):
                await found.look()
            host.instance = INSTANCE
            return await found.look()

        assert asking(host, ask)[0] == azure_notice(30)

    def test_has_the_time_to_wait_for_the_first_events(self) -> None:
        host = AzureHost([event()])

        async def reply(asked: Asked) -> bytes:
            if asked.path == EVENTS:
                await asyncio.sleep(1.2)
            return await host(asked)

        with max_wait(1.0):
            assert looks(azure, reply)[0] == [azure_notice(30)]
