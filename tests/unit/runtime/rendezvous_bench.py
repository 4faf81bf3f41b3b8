"""A running rendezvous server, ours or upstream's, and its driver as it sees one."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partialmethod
from http.server import HTTPServer
from typing import Any

import pytest
from horovod.runner.common.util.hosts import INVALID_SLOT_INFO, SlotInfo
from horovod.runner.elastic.rendezvous import create_rendezvous_handler
from horovod.runner.http.http_server import RendezvousHTTPServer
from horovod.runner.http.http_server import RendezvousServer as StockServer

from elastic_runtime.engines.horovod.driver import ElasticHandler, RollCall
from elastic_runtime.engines.horovod.rendezvous_server import RendezvousServer, authorization
from tests.unit.runtime.driver_bench import SOON


class Driver:
    """As the rendezvous sees it: host ``a`` is rank 3, and whoever comes to the barrier says so."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.left: set[str] = set()
        self.roll_call = RollCall()

        self.ranks = {"a": 3}
        """Of the present world of five."""
        self.registered: list[str] = []
        """Stock's only."""

    def register_worker_server(self, host: str, _slot: int, _addresses: object, _key: bytes) -> None:
        self.registered.append(host)

    def record_ready(self, host: str, slot: int) -> None:
        self.asked.append(host)

    def get_slot_info(self, host: str, slot: int) -> SlotInfo:
        if host in self.left or host not in self.ranks:
            return INVALID_SLOT_INFO
        return SlotInfo(host, self.ranks[host], 0, self.ranks[host], 5, 1, 5)


class Place:
    """A running rendezvous server and its driver."""

    def __init__(self, server: RendezvousServer | StockServer, handler: Any, driver: Driver, joined: list[str]) -> None:
        self.server, self.driver, self.joined = server, driver, joined
        self.port = server.start(handler)
        server.init([])

    def token(self, host: str) -> dict[str, str]:
        """The header by which that rank is known."""
        return authorization(self.server.tokens.of(host)) if isinstance(self.server, RendezvousServer) else {}

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        host: str = "a",
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, bytes]:
        """Status and body of the answer to that rank, or to whoever shows these headers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SOON)
        try:
            connection.request(method, path, body, self.token(host) if headers is None else headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


@contextmanager
def running(place: Place) -> Iterator[Place]:
    before = set(threading.enumerate())
    try:
        yield place
    finally:
        place.server.stop()
        for thread in set(threading.enumerate()) - before:
            thread.join(SOON)


@contextmanager
def adapted() -> Iterator[Place]:
    """Ours."""
    driver, joined = Driver(), list[str]()
    handler = ElasticHandler(driver, joined.append, print)
    with running(Place(RendezvousServer("127.0.0.1"), handler, driver, joined)) as place:
        yield place


@contextmanager
def stock() -> Iterator[Place]:
    """Upstream's."""
    driver = Driver()
    with pytest.MonkeyPatch.context() as patch:
        # So often it looks whether it shall stop, which takes it half a second otherwise.
        patch.setattr(RendezvousHTTPServer, "serve_forever", partialmethod(HTTPServer.serve_forever, 0.01))
        with running(Place(StockServer(), create_rendezvous_handler(driver), driver, [])) as place:
            yield place
            place.server._httpd.server_close()
