"""One watch for all runs of a namespace, and how far it is believed."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from typing import Any

import pytest

from elastic_runtime.errors import ClusterUnavailable, MissingRight, RunNotFound
from elastic_runtime.kubernetes.transport import Request, Transport
from elastic_runtime.run.status import Phase, Status
from elastic_training.clusters.kubernetes import connection
from elastic_training.clusters.kubernetes.access import Access
from elastic_training.clusters.kubernetes.watching import hub as watch
from elastic_training.clusters.kubernetes.watching.hub import Hub, watching
from elastic_training.clusters.types import LOG_START, LogLines, Quiet, RunRef, StatusChanged
from tests.kubernetes.loops import run
from tests.kubernetes.standin import OWNER, SLEEPS, StandIn
from tests.kubernetes.wires import as_account, wired
from tests.kubernetes_namespace import CONNECTION, Namespace

pytestmark = pytest.mark.timeout(600)
WATCH_TIMEOUT = 240.0


@pytest.fixture
def ref(standin: StandIn) -> RunRef:
    """A run that was claimed."""
    made = run(standin.cluster().claim(standin.spec(), OWNER)).ref
    standin.without_workers(made)
    return made


@asynccontextmanager
async def hub(namespace: Namespace, name: str = CONNECTION) -> AsyncIterator[Hub]:
    access = await connection.access_of(name)
    async with watching(access, namespace.name) as made:
        await until(lambda: made.trusted)
        yield made


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(WATCH_TIMEOUT):
        while not true():  # noqa: ASYNC110  # what is waited for has no event
            await asyncio.sleep(0.05)


@contextmanager
def requests_counted(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Those that are no streams, in order."""
    made: list[str] = []
    ask = Transport.ask

    async def counting(self: Transport, request: Request) -> Any:
        made.append(f"{request.method} {request.path}")
        return await ask(self, request)

    with monkeypatch.context() as patched:
        patched.setattr(Transport, "ask", counting)
        yield made


async def first_status(standin: StandIn, ref: RunRef, wanted: Phase) -> Status:
    async with asyncio.timeout(WATCH_TIMEOUT), aclosing(standin.cluster().watch(ref, None, 1.0)) as updates:
        async for update in updates:
            if isinstance(update, StatusChanged) and update.status.phase is wanted:
                return update.status
    raise AssertionError("the watch ended before")


def test_many_watches_are_three_streams(
    namespace: Namespace, standin: StandIn, ref: RunRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    stream = Transport.stream

    def counting(self: Transport, request: Request) -> Any:
        opened.append(request.path)
        return stream(self, request)

    monkeypatch.setattr(Transport, "stream", counting)
    standin.publish(ref, Phase.RUNNING, world_size=1)

    async def watched(times: int) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(times):
                group.create_task(first_status(standin, ref, Phase.SUCCEEDED))
            await asyncio.sleep(1)
            await asyncio.to_thread(standin.publish, ref, Phase.SUCCEEDED)

    run(watched(50))
    assert sorted(path.rsplit("/", 1)[1] for path in opened) == ["configmaps", "jobs", "pods"]


def test_the_copy_answers_who_attends_and_spares_a_request_for_advancing(
    namespace: Namespace, standin: StandIn, ref: RunRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = standin.cluster()
    mine = run(cluster.take_log_lease(ref, OWNER))

    async def asked() -> list[str]:
        async with hub(namespace) as copy:
            await until(lambda: (found := copy.root(ref)) and found.log_lease)
            with requests_counted(monkeypatch) as made:
                assert await cluster.log_lease_holder(ref) == mine.token
                assert made == []
                await cluster.advance(ref, mine.token, LOG_START)
                return list(made)

    (patch,) = run(asked())
    assert patch.startswith("PATCH")


def test_a_process_that_stood_still_asks_before_it_believes(
    namespace: Namespace, standin: StandIn, ref: RunRef
) -> None:
    cluster = standin.cluster()
    stale = run(cluster.take_log_lease(ref, OWNER))

    async def stalled() -> None:
        async with hub(namespace) as copy:
            await until(lambda: (found := copy.root(ref)) and found.log_lease)
            new = await cluster.take_log_lease(ref, OWNER)
            time.sleep(watch.STALL + 0.5)  # noqa: ASYNC251  # this is the stall, in which somebody else has taken over
            assert not copy.trusted
            assert await cluster.log_lease_holder(ref) == new.token != stale.token
            await until(lambda: copy.trusted)
            found = copy.root(ref)
            assert found is not None
            assert found.log_lease is not None
            assert found.log_lease.token == new.token

    run(stalled())


def test_an_api_server_that_is_away_is_waited_for(standin: StandIn, ref: RunRef) -> None:
    with wired(standin) as (other, between):
        cluster = standin.cluster(connection=other)
        standin.publish(ref, Phase.RUNNING, world_size=1)

        async def cut() -> list[Any]:
            found: list[Any] = []
            async with asyncio.timeout(WATCH_TIMEOUT), aclosing(cluster.watch(ref, LOG_START, 0.5)) as updates:
                async for update in updates:
                    found.append(update)
                    if isinstance(update, StatusChanged) and len(found) == 1:
                        between.cut()
                        await asyncio.to_thread(standin.publish, ref, Phase.SUCCEEDED)
                    if len(found) == 8:
                        between.mend()
            return found

        found = run(cut())
    assert all(isinstance(update, Quiet | LogLines) for update in found[1:8])
    assert isinstance(found[-1], StatusChanged)
    assert found[-1].status.phase is Phase.SUCCEEDED


def test_an_outage_that_lasts_is_said(standin: StandIn, ref: RunRef, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "OUTAGE", 2.0)
    with wired(standin) as (other, between):
        cluster = standin.cluster(connection=other)

        async def cut() -> None:
            async with asyncio.timeout(WATCH_TIMEOUT), aclosing(cluster.watch(ref, None, 0.2)) as updates:
                async for update in updates:
                    if isinstance(update, StatusChanged):
                        between.cut()

        with pytest.raises(ClusterUnavailable):
            run(cut())
        with pytest.raises(ClusterUnavailable):
            run(cluster.status(ref))
        between.mend()
        assert run(cluster.status(ref)).run == ref.name


def test_a_run_that_vanishes_ends_its_watch(namespace: Namespace, standin: StandIn, ref: RunRef) -> None:
    cluster = standin.cluster()
    standin.wait_until_launched(ref)

    async def vanishing() -> None:
        async with asyncio.timeout(WATCH_TIMEOUT), aclosing(cluster.watch(ref, LOG_START, 0.5)) as updates:
            async for update in updates:
                if isinstance(update, StatusChanged):
                    await asyncio.to_thread(namespace.kubectl, "delete", "configmap", ref.name)

    with pytest.raises(RunNotFound, match=ref.name):
        run(vanishing())
    run(_gone(standin))


async def _gone(standin: StandIn) -> None:
    await until(lambda: standin.namespace.left(standin.name) == [])


def test_without_the_right_to_watch_it_says_so(namespace: Namespace, standin: StandIn, ref: RunRef) -> None:
    with as_account(namespace, "default") as nobody:
        cluster = standin.cluster(SLEEPS, connection=nobody)

        async def refused() -> None:
            async with asyncio.timeout(WATCH_TIMEOUT), aclosing(cluster.watch(ref, None, 1.0)) as updates:
                async for _ in updates:
                    raise AssertionError("it has seen something")

        with pytest.raises(MissingRight, match=r"rbac\.yaml"):
            run(refused())


def test_what_two_loops_watch_does_not_mix(namespace: Namespace, standin: StandIn, ref: RunRef) -> None:
    async def both() -> set[Any]:
        async with AsyncExitStack() as stack:
            one = await stack.enter_async_context(hub(namespace))
            two = await stack.enter_async_context(hub(namespace))
            other = await asyncio.to_thread(lambda: run(_third(namespace)))
            assert one is two
            assert one is not other
            return {key[2] for key in watch._hubs}

    assert run(both()) == {namespace.name}
    assert watch._hubs == {}


async def _third(namespace: Namespace) -> Hub:
    async with hub(namespace) as made:
        return made


def test_a_connection_that_was_changed_is_used_as_it_is_now(
    namespace: Namespace, standin: StandIn, ref: RunRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "FRESH", 0.0)
    before: Access = run(connection.access_of(CONNECTION))
    with wired(standin) as (other, _):
        monkeypatch.setenv(f"AIRFLOW_CONN_{CONNECTION.upper()}", os.environ[f"AIRFLOW_CONN_{other.upper()}"])
        after = run(connection.access_of(CONNECTION))
        assert after.document != before.document
        assert run(standin.cluster().find(ref.name)) == ref
        connection.forget()
