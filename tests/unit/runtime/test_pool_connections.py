"""A keeper, the workers of a run, and a host without processes, over real connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from elastic_runtime.clock import utc_now
from elastic_runtime.errors import ClusterUnavailable
from elastic_runtime.launcher.pool import member
from elastic_runtime.launcher.pool.workers import PoolWorkers
from elastic_runtime.net import certificates
from elastic_runtime.pool.connection import Streams, receive
from elastic_runtime.pool.folder import PoolDir, pool_folder
from elastic_runtime.pool.keeper import Keeper
from elastic_runtime.pool.machine import MachineKeeperPlace, connect_here
from elastic_runtime.pool.messages import (
    FROM_KEEPER,
    TO_KEEPER,
    AgentEnded,
    Busy,
    ForkAgent,
    HostHello,
    KillAgent,
    Refused,
)
from elastic_runtime.pool.settings import PoolSettings
from elastic_runtime.run.pool import PoolSpec
from elastic_runtime.run.rundir import RunDir
from elastic_runtime.run.spec import RunSpec, WorkersSpec
from tests.unit.runtime.pool_bench import until


async def dial(pool: PoolDir) -> Streams:
    while True:
        try:
            return await connect_here(pool)
        except ClusterUnavailable:
            await asyncio.sleep(0.01)


class Host:
    """Notes what it is to fork."""

    def __init__(self) -> None:
        self.agents: dict[str, ForkAgent] = {}
        self.writer: asyncio.StreamWriter | None = None

    async def stand(self, pool: PoolDir) -> None:
        reader, self.writer = await dial(pool)
        busy = tuple(Busy(each.place, each.uid, each.worker) for each in self.agents.values())
        self.writer.write(TO_KEEPER.write(HostHello("here", 4, busy)))
        try:
            while (message := await receive(reader, FROM_KEEPER)) is not None:
                if isinstance(message, ForkAgent):
                    self.agents[f"{message.uid}/{message.worker}"] = message
                elif isinstance(message, KillAgent):
                    self.end(f"{message.uid}/{message.worker}", -9)
        finally:
            self.writer.transport.abort()
            self.writer = None

    def end(self, name: str, code: int = 0) -> None:
        order = self.agents.pop(name)
        assert self.writer
        self.writer.write(TO_KEEPER.write(AgentEnded(order.place, order.uid, order.worker, code)))


def words(run: PoolWorkers) -> str:
    """Why a run waits."""
    refusal = run.refusal()
    return refusal.words if refusal else ""


class Pool:
    def __init__(self, root: Path) -> None:
        self.root, self.folder = root, pool_folder(root, "team-a")
        self.folder.create(PoolSettings("team-a", maximum=4))
        self.folder.host_lock.touch()
        self.host = Host()
        self.changes = 0

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        settings = self.folder.settings()
        tasks = [asyncio.create_task(Keeper(MachineKeeperPlace(self.folder, settings), settings).run())]
        tasks.append(asyncio.create_task(self.host.stand(self.folder)))
        await until(lambda: self.host.writer, "a host")
        try:
            yield
        finally:
            for task in reversed(tasks):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def workers(self, name: str, wanted: int, priority: int = 1, *, greedy: bool = False) -> PoolWorkers:
        spec = RunSpec(name, name, ("true",), WorkersSpec(1, wanted, 4))
        run = RunDir(self.root / name)
        run.create(spec, "me")
        certificates.create(run.tls)
        pool = PoolSpec("team-a", priority, greedy)
        found = PoolWorkers(run, spec, pool, self.folder, self._changed)
        found.open("127.0.0.1:1")
        return found

    async def two(self) -> PoolWorkers:
        """A run with two workers, whose agents are connected to its launcher."""
        run = self.workers("run", 2)
        await until(lambda: len(self.agents("run")) == 2, "two")
        for worker in self.agents("run"):
            run.came(worker)
        return run

    def _changed(self) -> None:
        self.changes += 1

    def agents(self, name: str) -> list[str]:
        return sorted(each.worker for each in self.host.agents.values() if each.uid == name)


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pool:
    monkeypatch.setattr("elastic_runtime.pool.folder.PoolDir.has_host", lambda _: True)
    monkeypatch.setattr("elastic_runtime.pool.folder.PoolDir.start", lambda *_: None)
    return Pool(tmp_path)


def test_workers_pass_from_one_run_to_another_and_back(pool: Pool) -> None:
    async def run_test() -> None:
        async with pool.kept():
            low = pool.workers("low", 4)
            await until(lambda: len(pool.agents("low")) == 4, "all for one")
            for worker in pool.agents("low"):
                low.came(worker)
            low.world({"worker-0": 3, "worker-1": 0, "worker-2": 1, "worker-3": 2})
            assert pool.host.agents["low/worker-0"].launch.certificates.keys() == {"ca.crt", "agent.crt", "agent.key"}
            high = pool.workers("high", 2, priority=10)
            await until(lambda: low.share(4).workers == 2, "the first is to shrink")
            assert "beside high (10)" in low.share(4).words
            leaving = [worker for worker in pool.agents("low") if low.deadline(worker)]
            assert leaving == ["worker-0", "worker-3"], "those with the highest ranks"
            assert pool.changes
            for worker in leaving:
                pool.host.end(f"low/{worker}")
            await until(lambda: len(pool.agents("high")) == 2, "the second has them")
            closing = asyncio.create_task(high.end_workers())
            for worker in pool.agents("high"):
                pool.host.end(f"high/{worker}")
            await closing
            await until(lambda: len(pool.agents("low")) == 4, "the first has them again")
            await end(pool, low)

    asyncio.run(run_test())


def test_a_pool_grows_and_shrinks_while_it_is_used(pool: Pool) -> None:
    async def run_test() -> None:
        async with pool.kept():
            run = pool.workers("run", 4)
            await until(lambda: len(pool.agents("run")) == 4, "all")
            for worker in pool.agents("run"):
                run.came(worker)
            settings = pool.folder.settings()
            pool.folder.write_settings(settings.resized(replace(settings.size, maximum=1)))
            await until(lambda: run.share(4).workers == 1, "it is to shrink")
            assert "which has 1 at most" in run.share(4).words
            leaving = [worker for worker in pool.agents("run") if run.deadline(worker)]
            for worker in leaving:
                pool.host.end(f"run/{worker}")
            await until(lambda: pool.folder.status().warm == 1, "places are gone")
            (pool.folder.path / "pool.json").write_text("{}")
            pool.folder.write_settings(settings)
            await until(lambda: len(pool.agents("run")) == 4, "all again")
            await end(pool, run)

    asyncio.run(run_test())


def test_a_run_goes_on_without_a_keeper_and_is_adopted_by_the_next(pool: Pool) -> None:
    async def run_test() -> None:
        async with pool.kept():
            run = pool.workers("run", 2)
            await until(lambda: len(pool.agents("run")) == 2, "two")
        await until(lambda: "pool team-a" in words(run), "it is told")
        assert run.share(2).workers == 2
        assert run.deadline("worker-0") is None
        async with pool.kept():
            await until(lambda: not words(run), "another keeper")
            run.reconcile(3)
            await until(lambda: pool.agents("run") == ["worker-0", "worker-1", "worker-2"], "another worker")
            await end(pool, run)

    asyncio.run(run_test())


def test_idle_workers_go_to_a_greedy_run_until_its_script_cannot_use_them(pool: Pool) -> None:
    async def run_test() -> None:
        async with pool.kept():
            run = pool.workers("run", 1, greedy=True)
            await until(lambda: run.share(1).workers == 4, "all")
            assert "nobody else wishes for" in run.share(1).words
            run.only(1)
            await until(lambda: run.share(1).workers == 1, "one")
            await end(pool, run)

    asyncio.run(run_test())


def test_a_worker_that_does_not_leave_in_time_is_killed(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run_test() -> None:
        async with pool.kept():
            run = await pool.two()
            run.reconcile(1)
            assert run.deadline("worker-1") is not None
            late = utc_now() + timedelta(seconds=60)
            monkeypatch.setattr(member, "utc_now", lambda: late)
            run.reconcile(1)
            await until(lambda: pool.agents("run") == ["worker-0"], "it was killed")
            await end(pool, run)

    asyncio.run(run_test())


def test_an_agent_that_has_hung_up_is_given_time_to_end(pool: Pool) -> None:
    async def run_test() -> None:
        async with pool.kept():
            run = await pool.two()
            for worker in run._seen:
                run._seen[worker] -= member.COMING + 1.0
            run.gone("worker-1")
            run.reconcile(2)
            assert run.warnings() == ()
            run._seen["worker-1"] -= member.COMING + 1.0
            run.reconcile(2)
            assert len(run.warnings()) == 1, "it should have ended"
            await until(lambda: "worker-1" not in pool.agents("run"), "it was killed")
            run.reconcile(2)
            assert run.warnings() == (), "once, and not of one that is connected"
            await end(pool, run)

    asyncio.run(run_test())


def test_a_pool_that_was_taken_down_is_named(pool: Pool) -> None:
    async def run_test() -> None:
        async with pool.kept():
            run = pool.workers("run", 1)
            await until(lambda: len(pool.agents("run")) == 1, "one")
        pool.folder.withdraw()
        await until(lambda: "is not up any more" in words(run), "it is told")
        await run.end_workers()

    asyncio.run(run_test())


def test_a_run_that_is_refused_says_so_and_dials_less_and_less_often(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    dials: list[float] = []

    async def counted(folder: PoolDir) -> Streams:
        dials.append(asyncio.get_running_loop().time())
        return await connect_here(folder)

    monkeypatch.setattr("elastic_runtime.launcher.pool.workers.connect_here", counted)

    async def test() -> None:
        async with pool.kept():
            first = await pool.two()
            second = pool.workers("again", 1)
            second._spec = replace(second._spec, uid="run")
            await until(lambda: "refuses this run: a second launcher of run" in words(second), "a reason")
            assert not words(first)
            dials.clear()
            await until(lambda: len(dials) > 3, "further attempts")
            gaps = [after - before for before, after in pairwise(dials)]
            assert gaps[-1] > gaps[0] > 0.15, "ten a second before"
            for each in (first, second):
                await each.leave()

    asyncio.run(test())


def test_why_a_host_was_refused_is_told_to_runs_that_wait(pool: Pool) -> None:
    async def test() -> None:
        async with pool.kept():
            run = pool.workers("run", 4)
            reader, writer = await dial(pool.folder)
            old = TO_KEEPER.write(HostHello("there", 4)).replace(b'"version":4', b'"version":3')
            writer.write(old)
            refused = await receive(reader, FROM_KEEPER)
            assert isinstance(refused, Refused)
            assert "version" in refused.reason
            assert await receive(reader, FROM_KEEPER) is None
            writer.close()
            await until(lambda: refused.reason in pool.folder.status().trouble, "the pool's trouble")
            await run.leave()

    asyncio.run(test())


def test_whoever_says_no_hello_is_turned_away(pool: Pool) -> None:
    async def run_test() -> None:
        async with pool.kept():
            reader, writer = await dial(pool.folder)
            writer.write(b'{"type":"wishes"}\n')
            assert isinstance(await receive(reader, FROM_KEEPER), Refused)
            assert await receive(reader, FROM_KEEPER) is None
            writer.transport.abort()

    asyncio.run(run_test())


async def end(pool: Pool, run: PoolWorkers) -> None:
    closing = asyncio.create_task(run.end_workers())
    for name in list(pool.host.agents):
        pool.host.end(name)
    await closing
