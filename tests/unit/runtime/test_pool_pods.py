"""A pool in pods: its keeper in a namespace that is in memory, and a launcher that has workers of it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elastic_runtime.agent.__main__ import parse_arguments
from elastic_runtime.agent.devices import WorkerShares
from elastic_runtime.documents import from_json, to_json
from elastic_runtime.errors import InvalidDocument, InvalidSettings
from elastic_runtime.kubernetes.resources import CONFIG_MAPS, PODS, REPLICA_SETS
from elastic_runtime.launcher.kubernetes.pooled import PooledPods
from elastic_runtime.launcher.kubernetes.settings import read_credentials, read_settings
from elastic_runtime.launcher.pool.access import PoolAccess
from elastic_runtime.net import certificates
from elastic_runtime.pool import host
from elastic_runtime.pool.connection import connect, receive
from elastic_runtime.pool.keeper import Keeper
from elastic_runtime.pool.messages import (
    FROM_KEEPER,
    TO_KEEPER,
    AgentEnded,
    ForkAgent,
    HostHello,
    HostLeaves,
    KillAgent,
)
from elastic_runtime.pool.pods import objects
from elastic_runtime.pool.pods.__main__ import host_settings, keeper_settings
from elastic_runtime.pool.pods.__main__ import parse_arguments as parse_command
from elastic_runtime.pool.pods.host_place import HostSettings, PodHostPlace
from elastic_runtime.pool.pods.keeper_place import KeeperSettings, PodsKeeperPlace
from elastic_runtime.pool.pods.objects import PoolNames, PoolPart
from elastic_runtime.pool.settings import PoolSettings
from elastic_runtime.pool.status import PoolRun, PoolStatus
from elastic_runtime.run import runobjects
from elastic_runtime.run.pool import PoolSpec
from elastic_runtime.run.runobjects import SIZE
from elastic_runtime.run.spec import RunSpec, WorkersSpec
from tests.unit.runtime.fake_kubernetes import NAMESPACE, FakePlace
from tests.unit.runtime.pool_bench import SOON, until

NAMES = PoolNames("team-a")
SETTINGS = PoolSettings("team-a", 0, 4, idle=60.0)
SPEC = RunSpec("run", "run-uid", ("true",), WorkersSpec(1, 2, 4), environment={"A": "1"}, pool=PoolSpec("team-a"))


class Bench:
    """A pool and the root of a run, in memory, with a keeper on a real port."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.place = folder, FakePlace()
        self.forked: list[ForkAgent] = []
        self.killed: list[str] = []

    async def lay_down(self) -> None:
        labels = objects.labels("team-a", "pool-uid", PoolPart.ROOT)
        root = {
            "metadata": {"name": NAMES.root, "labels": labels, "annotations": {objects.SETTINGS: to_json(SETTINGS)}}
        }
        self.root = await self.place.create(CONFIG_MAPS, root)
        await self.place.create(CONFIG_MAPS, {"metadata": {"name": NAMES.status}})
        await self.place.create(REPLICA_SETS, {"metadata": {"name": NAMES.worker}, "spec": {"replicas": 0}})
        created = {"creationTimestamp": "2026-11-29T12:00:00Z"}
        await self.place.create(CONFIG_MAPS, {"metadata": {"name": SPEC.name, **created}})
        certificates.create(self.folder / "pool")
        certificates.create(self.folder / "run")

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[PodsKeeperPlace]:
        settings = KeeperSettings("team-a", "pool-uid", self.root.uid, NAMESPACE, "127.0.0.1", 0, self.folder / "pool")
        place = PodsKeeperPlace(self.place.api, settings)
        await place.fill()
        opened = asyncio.get_running_loop().create_future()
        real = place.open

        async def noted(port: int, on_change: Callable[[], None]) -> None:
            await real(port, on_change)
            opened.set_result(port)

        place.open = noted  # type: ignore[method-assign]  # the port is any
        task = asyncio.create_task(Keeper(place, SETTINGS).run())
        self.port = await opened
        try:
            yield place
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def size(self) -> int:
        return int((await self.place.api.get(REPLICA_SETS, NAMES.worker)).spec["replicas"])

    async def status(self) -> PoolStatus | None:
        text = (await self.place.api.get(CONFIG_MAPS, NAMES.status)).data.get(objects.STATUS_KEY)
        return from_json(PoolStatus, text) if text else None

    async def is_gone(self, pod: str) -> bool:
        return pod not in {each.name for each in await self.place.api.list(PODS)}

    async def pod(self, name: str) -> None:
        labels = objects.labels("team-a", "pool-uid", PoolPart.HOST)
        spec = {"nodeName": "node-1", "containers": []}
        await self.place.create(PODS, {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": {}})

    @asynccontextmanager
    async def host(self, name: str) -> AsyncIterator[Callable[[Any], None]]:
        """A host without processes; what is yielded says something to the keeper."""
        reader, writer = await connect("127.0.0.1", self.port, self.folder / "pool", "the pool")

        def say(message: Any) -> None:
            writer.write(TO_KEEPER.write(message))

        async def obey() -> None:
            while (message := await receive(reader, FROM_KEEPER)) is not None:
                if isinstance(message, ForkAgent):
                    self.forked.append(message)
                elif isinstance(message, KillAgent):
                    self.killed.append(message.worker)

        say(HostHello(name, 1))
        task = asyncio.create_task(obey())
        try:
            yield say
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            writer.transport.abort()

    @asynccontextmanager
    async def member(self, term: int = 1) -> AsyncIterator[PooledPods]:
        """The workers of the run, as its launcher has them."""
        assert SPEC.pool is not None
        access = PoolAccess(
            "pool-uid",
            ("127.0.0.1", self.port),
            self.folder / "pool",
            "10.0.0.7:7077",
            self.folder / "run",
            {"KEY": "secret"},
        )
        from elastic_runtime.kubernetes.copies import watched_copy

        root = watched_copy(self.place.api, CONFIG_MAPS, lambda: None, fields=f"metadata.name={SPEC.name}")
        await root.fill()
        made = PooledPods(self.place.api, SPEC, SPEC.pool, access, root, term)
        await made.fill()
        following = asyncio.create_task(root.run())
        try:
            made.open(lambda: None)
            yield made
        finally:
            await made.close()
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


def within(folder: Path, test: Callable[[Bench], Awaitable[None]]) -> None:
    async def main() -> None:
        bench = Bench(folder)
        await bench.lay_down()
        await test(bench)

    asyncio.run(main())


async def until_so(ask: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(SOON):
        while not await ask():  # noqa: ASYNC110  # nothing says so
            await asyncio.sleep(0.01)


async def until_size(bench: Bench, size: int) -> None:
    async def is_so() -> bool:
        return await bench.size() == size

    await until_so(is_so)


def test_a_run_has_pods_made_and_trains_in_them_until_it_ends(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        async with bench.kept() as place, bench.member() as run:

            def placed() -> tuple[PoolRun, ...]:
                return place._status.runs if place._status else ()

            await until_size(bench, 2)
            await bench.pod("pod-x")
            async with bench.host("pod-x") as say:
                await until(lambda: bench.forked, "an agent")
                (order,) = bench.forked
                assert (order.worker, order.uid) == ("pod-x", "run-uid")
                assert order.launch.environment == {"KEY": "secret", "A": "1"}
                assert order.launch.certificates["ca.crt"] == (tmp_path / "run" / "ca.crt").read_text()
                assert "secret" not in repr(order)
                await until(lambda: run.expects("pod-x"), "its launcher is told")
                assert run.share(2).workers == 2
                told = await bench.status()
                assert told is None or "secret" not in to_json(told)
                closing = asyncio.create_task(run.end_workers())
                await until(lambda: not any(each.wanted for each in placed()), "it is known to end")
                say(AgentEnded(0, "run-uid", "pod-x", 0))
                await closing
                assert len(bench.forked) == 1, "none is forked for a run that ends"
            assert await bench.size() == 2, "they stay for the next run"
            root = await bench.place.api.get(CONFIG_MAPS, SPEC.name)
            assert root.annotations[SIZE] == "0", "nothing of it computes"

    within(tmp_path, test)


def test_the_size_of_a_run_stands_in_its_root(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        async with bench.kept(), bench.member() as run:
            assert run.asked() == 2
            await bench.place.change(CONFIG_MAPS, SPEC.name, {"metadata": {"annotations": {SIZE: "4"}}})
            await until_size(bench, 4)
            run.ask(1)
            await until(lambda: run.asked() == 1, "it is written")
            await bench.place.change(CONFIG_MAPS, SPEC.name, {"metadata": {"annotations": {SIZE: "many"}}})
            await until(lambda: run.asked() == "many", "the launcher says what is wrong with it")
            run.ask(0)
            await until(lambda: run.asked() == 0, "a pause")

    within(tmp_path, test)


def test_a_host_that_leaves_has_another_pod_in_its_place(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        async with bench.kept(), bench.member(), bench.host("pod-x") as say, bench.host("pod-y"):
            await until(lambda: len(bench.forked) == 2, "two agents")
            say(HostLeaves())
            async with bench.host("pod-z"):
                await until(lambda: bench.forked[-1].worker == "pod-z", "another one")

    within(tmp_path, test)


def test_a_pod_whose_machine_will_be_taken_is_deleted_but_none_that_is_only_given_back(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        for name in ("pod-x", "pod-y"):
            await bench.pod(name)
        async with bench.kept(), bench.member() as run, bench.host("pod-x"), bench.host("pod-y"):
            await until(lambda: len(bench.forked) == 2, "two agents")
            run.ask(1)
            await until(lambda: run.deadline("pod-y"), "one leaves, since the run shrinks")
            run.replace("pod-y")
            run.replace("pod-x")
            await until_so(lambda: bench.is_gone("pod-x"))
            assert not await bench.is_gone("pod-y")

    within(tmp_path, test)


def test_a_launcher_that_replaces_one_that_is_cut_off_has_the_workers(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        async with bench.kept(), bench.member() as old, bench.host("pod-x") as say:
            await until(lambda: len(bench.forked) == 1, "an agent")
            async with bench.member(term=2) as new:
                await until(lambda: "has replaced this one" in words(old), "the older one is told")
                await until(lambda: bench.killed == ["pod-x"], "its agent is killed")
                say(AgentEnded(0, SPEC.uid, "pod-x", -9))
                await until(lambda: len(bench.forked) == 2, "an agent of the new one")
                await until(lambda: new.expects("pod-x"), "it has it")
                await until(lambda: "a second launcher" in words(old), "it dials again in vain")

    within(tmp_path, test)


def words(run: PooledPods) -> str:
    """Why a run waits."""
    refusal = run.refusal()
    return refusal.words if refusal else ""


class Forks:
    """A warm process without processes."""

    pid = 1

    def __init__(self, says: Callable[[dict[str, Any]], None], _ended: Callable[[], None]) -> None:
        self.says = says
        self.commands: dict[str, list[str]] = {}
        self.signals: list[tuple[str, int, bool]] = []
        made.append(self)

    def execute(self, *_: Any) -> None:
        """It is not ready before the test says so."""

    def start(self, name: str, command: list[str], *_: Any) -> bool:
        self.commands[name] = command
        return True

    def signal(self, name: str, number: int, *, alone: bool = False) -> None:
        self.signals.append((name, number, alone))

    async def close(self) -> None:
        """There is nothing to end."""


made: list[Forks] = []


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> list[Forks]:
    """Warm processes that hosts have started."""
    made.clear()
    for name in ("adopt_orphans", "end_orphans"):
        monkeypatch.setattr(host, name, lambda *_: None)
    monkeypatch.setattr(host, "ZygoteClient", Forks)
    return made


@asynccontextmanager
async def hosting(bench: Bench, name: str, grace: float = 5.0) -> AsyncIterator[host.Host]:
    """A real host in a pod of that name, until it has ended by itself."""
    keeper, tls, agents = ("127.0.0.1", bench.port), bench.folder / "pool", bench.folder / name
    settings = HostSettings(name, "127.0.0.1", "node-1", keeper, tls, bench.folder / "token", agents, grace)
    made = host.Host(PodHostPlace(settings), 1, WorkerShares({}, 1, 1), grace)
    task = asyncio.create_task(made.run())
    try:
        yield made
        async with asyncio.timeout(SOON):
            await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_a_host_connects_warm_forks_an_agent_and_has_it_leave_when_its_pod_ends(
    tmp_path: Path, forks: list[Forks]
) -> None:
    async def test(bench: Bench) -> None:
        async with bench.kept(), bench.member() as run, hosting(bench, "pod-x"):
            await until(lambda: forks, "a warm process")
            await asyncio.sleep(0.3)
            assert not run.expects("pod-x"), "it imports still"
            forks[0].says({"ready": True, "detail": ""})
            await until(lambda: forks[0].commands, "an agent")
            [(name, command)] = forks[0].commands.items()
            assert name == "run-uid/pod-x"
            agent = parse_arguments(command[3:])
            assert (agent.worker, agent.launcher, agent.node) == ("pod-x", ("10.0.0.7", 7077), "node-1")
            assert (agent.tls / "agent.key").read_text() == (tmp_path / "run" / "agent.key").read_text()
            os.kill(os.getpid(), signal.SIGTERM)
            await until(lambda: forks[0].signals, "its notice")
            assert forks[0].signals == [(name, signal.SIGTERM, True)]
            assert run.expects("pod-x"), "it is there until it has left"
            forks[0].says({"exited": name, "code": 0})
            await until(lambda: not run.expects("pod-x"), "it is gone")

    within(tmp_path, test)


def test_a_host_ends_at_once_without_an_agent_and_in_time_with_one_that_does_not_leave(
    tmp_path: Path, forks: list[Forks]
) -> None:
    async def test(bench: Bench) -> None:
        async with bench.kept():
            async with hosting(bench, "pod-x"):
                await until(lambda: forks, "a warm process")
                os.kill(os.getpid(), signal.SIGTERM)
            async with bench.member(), hosting(bench, "pod-y", grace=0.2):
                await until(lambda: len(forks) == 2, "another one")
                forks[1].says({"ready": True, "detail": ""})
                await until(lambda: forks[1].commands, "an agent")
                os.kill(os.getpid(), signal.SIGTERM)

    within(tmp_path, test)


def test_a_pool_that_is_resized_or_deleted_has_its_keeper_do_so(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        async with bench.kept() as place, bench.member() as run:
            await until_size(bench, 2)
            smaller = SETTINGS.resized(replace(SETTINGS.size, maximum=1))
            change = {"metadata": {"annotations": {objects.SETTINGS: to_json(smaller)}}}
            await bench.place.change(CONFIG_MAPS, NAMES.root, change)
            await until(lambda: run.share(2).workers == 1, "the run is to shrink")
            assert "which has 1 at most" in run.share(2).words
            await bench.place.change(CONFIG_MAPS, NAMES.root, {"metadata": {"annotations": {objects.SETTINGS: "{"}}})
            await until(lambda: place.settings() is None, "it is seen")
            assert place.is_up()
            await bench.place.remove(CONFIG_MAPS, NAMES.root)
            await until(lambda: not place.is_up(), "it is gone")
            await until(lambda: (why := run.refusal()) and "keeper of pool team-a" in why.words, "the run is told")

    within(tmp_path, test)


def test_a_keeper_whose_api_server_is_away_goes_on_and_writes_later(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        async with bench.kept():
            await until_size(bench, 0)
            bench.place.away = True
            await bench.place.cut_watches()
            async with bench.host("pod-x"):
                await asyncio.sleep(0.1)
                bench.place.away = False

                async def is_told() -> bool:
                    now = await bench.status()
                    return now is not None and now.warm == 1

                await until_so(is_told)

    within(tmp_path, test)


ENVIRONMENT = {
    objects.KEEPER_VARIABLE: "[fd00::7]:7078",
    objects.POOL_VARIABLE: "team-a",
    objects.POOL_UID_VARIABLE: "pool-uid",
    objects.ROOT_VARIABLE: "root-uid",
    runobjects.RUN_VARIABLE: "run",
    runobjects.RUN_UID_VARIABLE: "run-uid",
    runobjects.NAMESPACE_VARIABLE: "ns",
    runobjects.POD_NAME_VARIABLE: "pod-x",
    runobjects.POD_UID_VARIABLE: "pod-uid",
    runobjects.POD_ADDRESS_VARIABLE: "127.0.0.1",
    runobjects.NODE_VARIABLE: "node-1",
}


def test_what_pods_are_told_is_read_from_their_environment() -> None:
    keeper = keeper_settings(parse_command(["keeper"]), ENVIRONMENT)
    assert (keeper.pool, keeper.uid, keeper.root, keeper.port) == ("team-a", "pool-uid", "root-uid", 7078)
    host = host_settings(parse_command(["host", "--grace", "60"]), ENVIRONMENT)
    assert (host.keeper, host.pod, host.grace) == (("fd00::7", 7078), "pod-x", 60.0)
    words = PodHostPlace(host).arguments("pod-x", "")
    agent = parse_arguments(["--worker", "pod-x", "--launcher", "10.0.0.7:7077", "--tls", "/tls", *words])
    assert (agent.node, agent.address, agent.redial) == ("node-1", "127.0.0.1", False)
    assert str(agent.identity) == runobjects.IDENTITY_TOKEN
    launcher = read_settings([], ENVIRONMENT)
    assert launcher.pool is not None
    assert (launcher.pool.uid, launcher.pool.launcher) == ("pool-uid", "127.0.0.1:7077")
    assert read_settings([], {**ENVIRONMENT, objects.KEEPER_VARIABLE: ""}).pool is None
    for name in (objects.POOL_VARIABLE, objects.ROOT_VARIABLE):
        with pytest.raises(InvalidSettings, match=name):
            keeper_settings(parse_command(["keeper"]), {**ENVIRONMENT, name: ""})


def test_credentials_of_the_store_are_files_of_a_secret(tmp_path: Path) -> None:
    assert read_credentials(tmp_path / "none") == {}
    (tmp_path / "AWS_ACCESS_KEY_ID").write_text("key")
    (tmp_path / "..data").mkdir()
    assert read_credentials(tmp_path) == {"AWS_ACCESS_KEY_ID": "key"}
    (tmp_path / "folder").mkdir()
    with pytest.raises(InvalidSettings, match="cannot be read"):
        read_credentials(tmp_path)


def test_a_run_without_certificates_for_its_agents_is_not_begun(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        async with bench.kept():
            (tmp_path / "run" / "agent.key").unlink()
            with pytest.raises(InvalidDocument, match="certificates of the run's agents"):
                async with bench.member():
                    pass

    within(tmp_path, test)
