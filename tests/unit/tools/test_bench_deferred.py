"""What the benchmark of deferred runs makes of what it measures."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import Counter
from pathlib import Path

import aiohttp
import pytest

from benchmarks.deferred.figures import LARGEST, Quantity, figures_of
from benchmarks.deferred.kubelet import Kubelet
from benchmarks.deferred.report import as_lines, as_measures
from benchmarks.deferred.requests import Kind, between, parse
from benchmarks.deferred.rounds import Round
from benchmarks.deferred.sides import Load, Name, for_all
from benchmarks.deferred.usage import Usage
from elastic_runtime.net import certificates

METRICS = """
# TYPE apiserver_request_total counter
apiserver_request_total{code="200",contentType="application/json",resource="pods",subresource="",verb="GET"} 12
apiserver_request_total{code="404",contentType="application/json",resource="pods",subresource="",verb="GET"} 3
apiserver_request_total{code="200",contentType="text/plain",resource="pods",subresource="log",verb="GET"} 1e+01
apiserver_request_total{code="200",contentType="application/vnd.kubernetes.protobuf",resource="pods",verb="LIST",\
subresource=""} 7
apiserver_request_duration_seconds_sum{resource="pods",verb="GET"} 1.5
"""


def a_round(side: Name, requests: int, cpu: float, *delays: float, count: int = LARGEST) -> Round:
    usage = Usage(seconds=60.0, cpu=cpu, pss=[2**20, 3 * 2**20])
    asked = Counter({Kind("GET", "pods"): requests})
    return Round(side, count, usage, usage, asked, 0, 12.0, asked, delays)


class TestRequests:
    def test_they_are_summed_over_codes_without_the_servers_own(self) -> None:
        assert parse(METRICS) == {Kind("GET", "pods"): 15, Kind("GET", "pods", "log"): 10}

    def test_between_two_looks_only_what_was_added_counts(self) -> None:
        pods, logs = Kind("GET", "pods"), Kind("GET", "pods", "log")
        assert between({pods: 3, logs: 2}, {pods: 10, logs: 2}) == {pods: 7}


class TestFigures:
    rounds = (
        a_round(Name.IDLE, 0, 0.5),
        a_round(Name.OURS, 600, 6.0, 1.0, 2.0, 3.0),
        a_round(Name.PEER, 18000, 54.0, 4.0, 5.0),
        a_round(Name.OURS, 600, 6.0, 1.0, 2.0, 3.0, count=10),
    )

    def test_a_quantity_needs_both_sides(self) -> None:
        assert {figure.count for figure in figures_of(self.rounds)} == {LARGEST}

    def test_targets_are_judged_by_the_ratio(self) -> None:
        figures = {figure.quantity: figure for figure in figures_of(self.rounds)}
        assert figures[Quantity.REQUESTS].ours.centre == 10.0
        assert figures[Quantity.REQUESTS].met is True
        assert figures[Quantity.CPU].met is False
        assert figures[Quantity.CPU].idle == 0.5
        assert figures[Quantity.DELAY].met is None

    def test_a_run_that_never_resumed_is_told_and_compared_with_nothing(self) -> None:
        lost = a_round(Name.OURS, 600, 6.0, float("inf"), float("inf"))
        figures = {figure.quantity: figure for figure in figures_of([lost, self.rounds[2]])}
        assert figures[Quantity.DELAY].ratio is None
        assert as_measures(figures.values())["deferred_1000_delay"]["ours"] is None

    def test_the_section_names_both_sides_requests(self) -> None:
        lines = as_lines(figures_of(self.rounds), self.rounds, Load(), {"machine": "a small one"}, [])
        assert any("GET pods: 300" in line and "peer" in line for line in lines)
        assert json.dumps(as_measures(figures_of(self.rounds)), allow_nan=False)


class TestForAll:
    def test_results_are_in_order_whoever_is_first(self) -> None:
        async def late(index: int) -> int:
            for _ in range(40 - index):
                await asyncio.sleep(0)
            return index

        assert asyncio.run(for_all(40, late)) == list(range(40))


class TestKubelet:
    @pytest.fixture
    def tls(self, tmp_path: Path) -> Path:
        """The run's certificates will do for the cluster's."""
        certificates.create(tmp_path / "tls", ["127.0.0.1"])
        for end in ("crt", "key"):
            (tmp_path / "tls" / f"launcher.{end}").rename(tmp_path / "tls" / f"apiserver.{end}")
        return tmp_path / "tls"

    def test_a_followed_log_ends_with_its_container(self, tls: Path) -> None:
        asyncio.run(self._follow(tls))

    async def _follow(self, tls: Path) -> None:
        kubelet = Kubelet()
        kubelet.write("pod", "before")
        async with kubelet.serve(tls) as port, aiohttp.ClientSession() as session:
            url = f"https://127.0.0.1:{port}/containerLogs/default/pod/launcher"
            query = {"follow": "true", "timestamps": "true"}
            async with session.get(url, params=query, ssl=_client_context(tls)) as answer:
                first = await answer.content.readline()
                assert kubelet.followed == 1
                kubelet.write("pod", "after")
                kubelet.end("pod")
                rest = await answer.content.read()
        stamp, _, text = first.decode().partition(" ")
        assert stamp.endswith("000Z")
        assert text == "before\n"
        assert rest.decode().endswith(" after\n")
        assert kubelet.followed == 0


def _client_context(tls: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(tls / "ca.crt"))
    context.load_cert_chain(tls / "agent.crt", tls / "agent.key")
    return context
