"""A running rendezvous server, ours or upstream's, and its driver as it sees one."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partialmethod
from http.server import HTTPServer
from typing import Any

import pytest
from horovod.runner.common.util.hosts import INVALID_SLOT_INFO, SlotInfo
from horovod.runner.elastic.rendezvous import create_rendezvous_handler
from horovod.runner.http.http_server import RendezvousHTTPServer
from horovod.runner.http.http_server import RendezvousServer as StockServer

from elastic_runtime.engines.horovod.rendezvous import ElasticHandler, RollCall
from elastic_runtime.engines.horovod.rendezvous_server import RendezvousServer
from tests.unit.runtime.driver_bench import SOON


class Driver:
    """As the rendezvous sees it: host ``a`` has a rank, and whoever is asked for says so."""

    def __init__(self) -> None:
        self.registered: list[tuple[str, int, object, bytes]] = []
        self.asked: list[str] = []
        self.left: set[str] = set()
        self.roll_call = RollCall()

    def has_rank_assignment(self, host: str, slot: int) -> bool:
        return host == "a" and slot == 0

    def register_worker_server(self, host: str, slot: int, addresses: object, key: bytes) -> None:
        self.registered.append((host, slot, addresses, key))

    def record_ready(self, host: str, slot: int) -> None:
        self.asked.append(host)

    def get_slot_info(self, host: str, slot: int) -> SlotInfo:
        return INVALID_SLOT_INFO if host in self.left else SlotInfo(host, 3, 0, 0, 5, 1, 5)


class Place:
    """A running rendezvous server and its driver."""

    def __init__(self, server: RendezvousServer | StockServer, handler: Any, driver: Driver, joined: list[str]) -> None:
        self.server, self.driver, self.joined = server, driver, joined
        self.port = server.start(handler)
        server.init([])

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Status and body of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SOON)
        try:
            connection.request(method, path, body)
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
    handler = ElasticHandler(driver, joined.append)
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
