"""A whole agent against a launcher's server: its ranks, its notices, its end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from elastic_runtime.agent.agent import Agent, AgentSettings
from elastic_runtime.agent.notices.clouds import NO_METADATA, Metadata
from elastic_runtime.clock import utc_now
from elastic_runtime.documents import to_json, write_atomically
from elastic_runtime.errors import ClusterUnavailable
from elastic_runtime.net import certificates
from elastic_runtime.protocol import rank_link
from elastic_runtime.protocol.rank_link import Handover
from elastic_runtime.protocol.wire import (
    Heartbeat,
    Host,
    Hosts,
    NamedElsewhere,
    Output,
    RankExited,
    RankStarted,
    Ready,
    Release,
    StartRank,
    StopRank,
)
from elastic_runtime.run.rundir import ReclaimNotice
from elastic_runtime.run.spec import NoticeService, RunSpec
from tests.unit.runtime.agent_bench import SOON, Desk, listening, spec
from tests.unit.runtime.metadata_bench import ACTION, Asked, Ec2, answer, metadata_server


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "tls"
    certificates.create(folder)
    return folder


def ends(desk: Desk) -> list[tuple[str, int]]:
    """Of ranks, with their codes; how long ago they were is the machine's affair."""
    return [(each.rank_id, each.code) for each in desk.of(RankExited)]


@asynccontextmanager
async def agent(
    tls: Path, run: RunSpec, notice: Path | None = None, metadata: Metadata = NO_METADATA
) -> AsyncIterator[tuple[Desk, asyncio.Task[None]]]:
    """One that is ready; it has ended in the end."""
    async with listening(tls, run) as desk:
        settings = AgentSettings(
            "worker-0", ("127.0.0.1", desk.port), tls, grace=0.05, notice_file=notice, metadata=metadata
        )
        task = asyncio.create_task(Agent(settings).run())
        try:
            await desk.until(lambda: bool(desk.of(Ready)))
            yield desk, task
        finally:
            for connection in desk.arrivals:
                connection.abort()
            async with asyncio.timeout(SOON):
                await task


SLEEPER = ("sh", "-c", "echo ready; exec sleep 600")


async def start(desk: Desk, rank_id: str = "worker-0.0.0~0") -> int:
    """Start a rank, wait until it says something. Returns its pid."""
    desk.arrivals[0].send(StartRank(rank_id, 0, {"HOROVOD_RANK": "3"}))
    await desk.until(lambda: bool(desk.of(Output) and desk.of(RankStarted)))  # in whatever order
    return desk.of(RankStarted)[0].pid


def test_says_who_it_is_and_that_it_lives(tls: Path) -> None:
    async def run() -> None:
        async with agent(tls, spec(heartbeat=0.02)) as (desk, _):
            hello = desk.arrivals[0].hello
            assert (hello.worker, hello.node, hello.pid, hello.slots, hello.interface) == (
                *("worker-0", os.uname().nodename, os.getpid(), 1, "lo"),
            )
            await desk.until(lambda: len(desk.of(Heartbeat)) >= 3)
            assert all(each.memory_bytes > 1_000_000 for each in desk.of(Heartbeat))

    asyncio.run(run())


@pytest.mark.parametrize(
    ("engine", "named", "told"),
    [
        ("horovod", ["127.0.1.1"], ["127.0.1.1"]),
        ("horovod", [], [""]),
        ("horovod", ["fd00::7", "10.0.0.7"], []),
        ("torch", ["127.0.1.1"], []),
    ],
)
def test_says_where_its_name_leads_elsewhere_if_the_engine_uses_the_name(
    tls: Path, monkeypatch: pytest.MonkeyPatch, engine: str, named: list[str], told: list[str]
) -> None:
    asked: list[None] = []
    monkeypatch.setattr("elastic_runtime.agent.agent.named_addresses", lambda: asked.append(None) or named)

    async def run() -> None:
        async with listening(tls, RunSpec("run", "uid", ("true",), engine=engine, warm=False)) as desk:
            settings = AgentSettings("worker-0", ("127.0.0.1", desk.port), tls, address="10.0.0.7")
            task = asyncio.create_task(Agent(settings).run())
            await desk.until(lambda: bool(desk.of(Ready)) and len(asked) == (engine == "horovod"))
            await desk.until(lambda: len(desk.of(NamedElsewhere)) == len(told))
            desk.arrivals[0].send(Release("done"))
            await task
            assert [each.named for each in desk.of(NamedElsewhere)] == told

    asyncio.run(run())


def test_a_rank_finds_the_hosts_of_its_world_in_a_file(tls: Path) -> None:
    run_spec = RunSpec("digits", "uid", ("sh", "-c", 'cat "$ELASTIC_RUNTIME_HOSTFILE"'), warm=False)

    async def run() -> None:
        async with agent(tls, run_spec) as (desk, _):
            desk.arrivals[0].send(Hosts((Host("10.0.0.1", 2), Host("10.0.0.2", 1))))
            desk.arrivals[0].send(StartRank("worker-0.0.0~0", 0, {}))
            await desk.until(lambda: bool(desk.of(RankExited)))
            lines = [line for each in desk.of(Output) for line in each.lines]
            assert lines == ["10.0.0.1 slots=2", "10.0.0.2 slots=1"]

    asyncio.run(run())


def test_a_rank_finds_in_its_environment_where_it_is(tls: Path) -> None:
    names = [rank_link.RUN_NAME, rank_link.WORKER_NAME, rank_link.SLOT, "HOROVOD_RANK", "OWN"]
    command = ("sh", "-c", "; ".join(f'echo "${name}"' for name in names))
    run_spec = RunSpec("digits", "uid", command, environment={"OWN": "own"}, warm=False)

    async def run() -> None:
        async with agent(tls, run_spec) as (desk, _):
            desk.arrivals[0].send(StartRank("worker-0.0.0~0", 0, {"HOROVOD_RANK": "3"}))
            await desk.until(lambda: bool(desk.of(RankExited)))
            lines = [line for each in desk.of(Output) for line in each.lines]
            assert lines == ["digits", "worker-0", "0", "3", "own"]
            assert ends(desk) == [("worker-0.0.0~0", 0)]

    asyncio.run(run())


def test_what_an_engine_gives_by_default_the_run_may_set(tls: Path) -> None:
    own = {"NCCL_SOCKET_IFNAME": "ib0", "RANK": "7"}
    run_spec = RunSpec("digits", "uid", ("sh", "-c", "echo $NCCL_SOCKET_IFNAME $RANK"), environment=own, warm=False)

    async def run() -> None:
        async with agent(tls, run_spec) as (desk, _):
            given = {"NCCL_SOCKET_IFNAME": "eth0", "RANK": "0"}
            desk.arrivals[0].send(StartRank("worker-0.0.0~0", 0, given))
            await desk.until(lambda: bool(desk.of(RankExited)))
            assert [line for each in desk.of(Output) for line in each.lines] == ["ib0 0"]

    asyncio.run(run())


def test_stops_a_rank_when_told(tls: Path) -> None:
    async def run() -> None:
        async with agent(tls, spec(*SLEEPER)) as (desk, _):
            await start(desk)
            desk.arrivals[0].send(Handover("worker-1", utc_now()))  # nobody listens: no error
            desk.arrivals[0].send(StopRank("worker-0.0.0~0", SOON))
            await desk.until(lambda: ends(desk) == [("worker-0.0.0~0", -signal.SIGTERM)])

    asyncio.run(run())


@pytest.mark.parametrize("how", ["released", "hung up on"])
def test_ends_with_its_ranks(tls: Path, how: str) -> None:
    async def run() -> None:
        async with agent(tls, spec(*SLEEPER)) as (desk, task):
            pid = await start(desk)
            if how == "released":
                desk.arrivals[0].send(Release("enough"))
            else:
                desk.arrivals[0].abort()
            async with asyncio.timeout(SOON):
                await task
            assert not psutil.pid_exists(pid)

    asyncio.run(run())


@pytest.mark.parametrize("source", ["file", "sigterm"])
def test_tells_of_a_notice_and_ends_at_its_deadline(tls: Path, tmp_path: Path, source: str) -> None:
    notice = tmp_path / "notice.json"

    async def run() -> None:
        async with agent(tls, spec(*SLEEPER), notice) as (desk, task):
            await start(desk)
            if source == "sigterm":
                os.kill(os.getpid(), signal.SIGTERM)
            else:
                write_atomically(notice, to_json(ReclaimNotice("spot", utc_now() + timedelta(seconds=0.1))))
            async with asyncio.timeout(SOON):
                await task
            await desk.until(lambda: desk.ends == ["worker-0"])
            [noticed] = desk.of(ReclaimNotice)
            assert noticed.source == {"sigterm": "sigterm", "file": "spot"}[source]
            assert noticed.deadline <= utc_now()

    asyncio.run(run())


def test_a_notice_that_cannot_be_read_is_one_for_now(tls: Path, tmp_path: Path) -> None:
    notice = tmp_path / "notice.json"

    async def run() -> None:
        async with agent(tls, spec(), notice) as (desk, task):
            notice.write_text("soon")
            async with asyncio.timeout(SOON):
                await task
            await desk.until(lambda: desk.ends == ["worker-0"])
            assert [each.source for each in desk.of(ReclaimNotice)] == ["file"]

    asyncio.run(run())


def test_tells_what_the_metadata_service_announces(tls: Path) -> None:
    deadline = utc_now().replace(microsecond=0)  # reached: the agent tells, and ends
    aws = Ec2({ACTION: [answer(200, json.dumps({"action": "terminate", "time": f"{deadline:%Y-%m-%dT%H:%M:%SZ}"}))]})

    async def run() -> None:
        is_ready = asyncio.Event()

        async def reply(asked: Asked) -> bytes:
            await is_ready.wait()
            return await aws(asked)

        async with (
            metadata_server(reply) as server,
            agent(tls, spec(), metadata=Metadata(NoticeService.AWS, server.base)) as (desk, task),
        ):
            is_ready.set()
            async with asyncio.timeout(SOON):
                await task
            await desk.until(lambda: desk.ends == ["worker-0"])
            assert desk.of(ReclaimNotice) == [ReclaimNotice("aws", deadline, punctual=True)]

    asyncio.run(run())


def test_gives_up_on_a_launcher_that_does_not_answer(tls: Path) -> None:
    async def run() -> None:
        async with listening(tls, spec()) as desk:
            port = desk.port
        await Agent(AgentSettings("worker-0", ("127.0.0.1", port), tls, max_wait=0.0)).run()

    with pytest.raises(ClusterUnavailable, match="no launcher at"):
        asyncio.run(run())


def test_does_not_work_for_another_runs_launcher(tls: Path, tmp_path: Path) -> None:
    certificates.create(tmp_path / "other")

    async def run() -> None:
        async with listening(tmp_path / "other", spec()) as desk:
            await Agent(AgentSettings("worker-0", ("127.0.0.1", desk.port), tls)).run()

    with pytest.raises(ClusterUnavailable, match="is not this run's"):
        asyncio.run(run())


def test_is_not_welcomed_under_a_name_that_is_taken(tls: Path) -> None:
    async def run() -> None:
        async with agent(tls, spec()) as (desk, _):
            await Agent(AgentSettings("worker-0", ("127.0.0.1", desk.port), tls)).run()

    with pytest.raises(ClusterUnavailable, match="did not welcome"):
        asyncio.run(run())
