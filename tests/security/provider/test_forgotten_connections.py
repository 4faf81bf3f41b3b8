"""A connection that was deleted, forbidden or changed is not used any more, by no call and no watch that goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook, Connection

from elastic_runtime.errors import ClusterUnavailable, InvalidSettings
from elastic_training.airflow import versions as airflow_versions
from elastic_training.clusters.kubernetes import access, connection
from elastic_training.clusters.kubernetes.access import Access
from elastic_training.clusters.kubernetes.watching.hub import Hub
from elastic_training.concurrency import bridge
from tests.unit.provider.virtual_time import run_virtually
from tests.unit.runtime.fake_kubernetes import FakePlace

NAME = "cloud"


class Airflow:
    """What it says of its connections, and how often it was asked."""

    def __init__(self) -> None:
        self.answer: Exception | str = "one"
        """The server, in the connection's kubeconfig."""
        self.asked = 0

    def get_connection(self, conn_id: str) -> Connection:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        extra = {"kube_config": {"users": [{"name": "me", "user": {"token": self.answer}}]}}
        return Connection(conn_id=conn_id, conn_type="kubernetes", extra=json.dumps(extra))

    async def connection_in_loop(self, conn_id: str) -> Connection:
        return self.get_connection(conn_id)

    async def extras_in_loop(self, found: Connection) -> dict[str, Any]:
        return dict(found.extra_dejson)


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Airflow]:
    said = Airflow()
    for module in (access, airflow_versions):
        monkeypatch.setattr(module, "connection_in_loop", said.connection_in_loop)
        monkeypatch.setattr(module, "extras_in_loop", said.extras_in_loop)
    monkeypatch.setattr(BaseHook, "get_connection", said.get_connection)
    connection.forget()
    yield said
    connection.forget()


def in_triggerer(test: Callable[[Callable[[float], Awaitable[None]]], Awaitable[None]], monkeypatch: Any) -> None:
    """On virtual time, by which the module's clock goes, too."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(connection.time, "monotonic", loop.time)
        await test(asyncio.sleep)

    run_virtually(main())


GONE = AirflowNotFoundException("The conn_id `cloud` isn't defined")


def test_it_is_asked_for_again_after_a_minute_and_not_before(airflow: Airflow, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(sleep: Callable[[float], Awaitable[None]]) -> None:
        first = await connection.access_of(NAME)
        airflow.answer = "two"
        await sleep(connection.FRESH - 1)
        assert await connection.access_of(NAME) == first
        assert airflow.asked == 1
        await sleep(2)
        assert await connection.access_of(NAME) != first

    in_triggerer(test, monkeypatch)


def test_one_that_was_forbidden_is_refused_at_the_next_question(
    airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(sleep: Callable[[float], Awaitable[None]]) -> None:
        await connection.access_of(NAME)
        airflow.answer = PermissionError("not for you")
        await sleep(connection.FRESH + 1)
        with pytest.raises(InvalidSettings, match="'cloud' is not defined, or this task may not read it"):
            await connection.access_of(NAME)
        assert connection.remembered(NAME) is None

    in_triggerer(test, monkeypatch)


def test_one_that_was_deleted_is_used_for_five_minutes_at_most(
    airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(sleep: Callable[[float], Awaitable[None]]) -> None:
        first = await connection.access_of(NAME)
        airflow.answer = GONE
        for _ in range(4):  # An Airflow that does not answer says the same.
            await sleep(connection.FRESH + 1)
            assert await connection.access_of(NAME) == first
        await sleep(connection.FRESH + connection.DOUBT - 4 * (connection.FRESH + 1))
        with pytest.raises(InvalidSettings, match="'cloud' is not defined, or this task may not read it"):
            await connection.access_of(NAME)
        assert connection.remembered(NAME) is None

    in_triggerer(test, monkeypatch)


def test_nor_longer_when_airflow_fails_in_some_other_way(airflow: Airflow, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(sleep: Callable[[float], Awaitable[None]]) -> None:
        await connection.access_of(NAME)
        airflow.answer = RuntimeError("no database")
        await sleep(connection.FRESH + connection.DOUBT + 1)
        for _ in range(3):
            with pytest.raises(RuntimeError, match="no database"):
                await connection.access_of(NAME)

    in_triggerer(test, monkeypatch)


@pytest.mark.parametrize(
    ("answer", "error"),
    [(PermissionError("not for you"), InvalidSettings), (GONE, InvalidSettings), ("two", ClusterUnavailable)],
    ids=["forbidden", "deleted", "changed"],
)
def test_a_watch_that_goes_on_ends(
    answer: Exception | str, error: type[Exception], airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(sleep: Callable[[float], Awaitable[None]]) -> None:
        access = await connection.access_of(NAME)
        hub = Hub(FakePlace().api, lambda: connection.confirm(access))
        task = hub.start()
        with hub.subscribed("run") as wake:
            await sleep(2 * connection.FRESH)
            hub.check()
            airflow.answer = answer
            async with asyncio.timeout(connection.FRESH + connection.DOUBT + connection.FRESH + 1):
                wake.clear()
                await wake.wait()
            with pytest.raises(error):
                hub.check()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    in_triggerer(test, monkeypatch)


def test_the_client_of_a_changed_one_is_closed_and_the_new_one_is_another(
    airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a worker, whose clients are kept between calls."""
    closed: list[str] = []

    class Transport:
        def __init__(self, token: str) -> None:
            self.token = token

        async def close(self) -> None:
            closed.append(self.token)

    def token(access: Access) -> str:
        return str(json.loads(access.document or "")["users"][0]["user"]["token"])

    monkeypatch.setattr(connection, "load", token)
    monkeypatch.setattr(connection, "open_transport", lambda configuration, _: Transport(configuration))
    monkeypatch.setattr(connection, "FRESH", 0.0)

    async def call() -> Any:
        access = await connection.access_of(NAME)
        async with connection.client(access, "training") as client:
            return client._transport

    first = bridge.run(call())
    assert bridge.run(call()) is first
    assert closed == []
    airflow.answer = "two"
    assert bridge.run(call()).token == "two"
    assert closed == ["one"]
    airflow.answer = PermissionError("not for you")
    with pytest.raises(InvalidSettings):
        bridge.run(call())
    assert closed == ["one", "two"]
