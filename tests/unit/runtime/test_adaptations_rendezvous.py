"""The rendezvous server's rows of the table in :mod:`elastic_runtime.adaptations`, beside stock Horovod."""

from __future__ import annotations

import base64
import http.client
import os
import pickle
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial, partialmethod
from http.server import HTTPServer
from pathlib import Path
from typing import Any

import cloudpickle
import psutil
import pytest
from horovod.runner.common.util import codec, network, secret
from horovod.runner.common.util.hosts import INVALID_SLOT_INFO, SlotInfo
from horovod.runner.elastic.rendezvous import create_rendezvous_handler
from horovod.runner.elastic.worker import HostUpdateResult, WorkerNotificationClient, WorkerNotificationService
from horovod.runner.http.http_server import RendezvousHTTPServer
from horovod.runner.http.http_server import RendezvousServer as StockServer
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.adaptations import rendezvous_server
from elastic_runtime.adaptations.rendezvous import (
    NEXT_ASSIGNMENT,
    ElasticHandler,
    NotificationClient,
    loads_restricted,
    only_at,
    parse_worker_addresses,
)
from elastic_runtime.adaptations.rendezvous_server import RendezvousServer
from elastic_runtime.adaptations.rendezvous_server import RendezvousServer as OurServer
from elastic_runtime.errors import InvalidDocument
from tests.unit.runtime.driver_bench import SOON, in_thread, wait_until

dumps_base64 = partial(codec.dumps_base64, to_ascii=False)
ADDRESSES = {"lo": [("127.0.0.1", 4711)]}


class Driver:
    """As the rendezvous sees it: host ``a`` has a rank, and whoever is asked for says so."""

    def __init__(self) -> None:
        self.registered: list[tuple[str, int, object, bytes]] = []
        self.asked: list[str] = []
        self.left: set[str] = set()

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


@pytest.fixture
def adapted() -> Iterator[Place]:
    driver, joined = Driver(), list[str]()
    handler = ElasticHandler(driver, joined.append)
    with running(Place(OurServer("127.0.0.1"), handler, driver, joined)) as place:
        yield place


@pytest.fixture
def stock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    # So often it looks whether it shall stop, which takes it half a second otherwise.
    monkeypatch.setattr(RendezvousHTTPServer, "serve_forever", partialmethod(HTTPServer.serve_forever, 0.01))
    driver = Driver()
    with running(Place(StockServer(), create_rendezvous_handler(driver), driver, [])) as place:
        yield place
        place.server._httpd.server_close()


class Bomb:
    """Unpickling it runs a command."""

    def __init__(self, target: Path) -> None:
        self.command = f"touch {target}"

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


class TestUnpickling:
    """The server unpickles what anybody sends."""

    def test_stock_executes_what_it_is_sent(self, stock: Place, tmp_path: Path) -> None:
        bomb = base64.b64encode(pickle.dumps(({"lo": [("127.0.0.1", 1)]}, Bomb(tmp_path / "executed"))))
        stock.ask("PUT", "/worker_addresses/nobody:0", bomb)
        assert (tmp_path / "executed").exists()

    def test_only_plain_data_is_unpickled(self, adapted: Place, tmp_path: Path) -> None:
        bomb = base64.b64encode(pickle.dumps((ADDRESSES, Bomb(tmp_path / "executed"))))
        assert adapted.ask("PUT", "/worker_addresses/a:0", bomb)[0] == 400
        assert not (tmp_path / "executed").exists()
        assert adapted.driver.registered == []

    def test_what_a_rank_sends_is_understood(self, adapted: Place) -> None:
        key = secret.make_secret_key()
        assert adapted.ask("PUT", "/worker_addresses/a:0", codec.dumps_base64((ADDRESSES, key)))[0] == 200
        assert adapted.driver.registered == [("a", 0, ADDRESSES, key)]

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"!",
            b"AAAA",
            base64.b64encode(b"."),
            base64.b64encode(b"cos\nsystem\n."),
            dumps_base64(None),
            dumps_base64((ADDRESSES,)),
            dumps_base64((ADDRESSES, "key")),
            dumps_base64(({}, b"key")),
            dumps_base64(({"lo": [("127.0.0.1", "port")]}, b"key")),
            dumps_base64(({"lo": [3]}, b"key")),
            dumps_base64(([ADDRESSES], b"key")),
            dumps_base64((ADDRESSES, b"key", len)),
        ],
    )
    def test_anything_else_is_refused(self, adapted: Place, body: bytes) -> None:
        assert adapted.ask("PUT", "/worker_addresses/a:0", body)[0] == 400
        assert adapted.driver.registered == []

    @given(st.recursive(st.none() | st.booleans() | st.integers() | st.binary() | st.text(), st.lists))
    def test_plain_data_comes_through(self, value: object) -> None:
        assert loads_restricted(cloudpickle.dumps(value)) == value

    @pytest.mark.parametrize("value", [len, Path("/"), ValueError("x"), HostUpdateResult.mixed, {"a": Bomb}])
    def test_no_class_and_no_function_does(self, value: object) -> None:
        with pytest.raises(InvalidDocument, match="refused to unpickle"):
            loads_restricted(cloudpickle.dumps(value))

    @given(st.data())
    def test_a_torn_pickle_is_refused(self, data: st.DataObject) -> None:
        whole = cloudpickle.dumps((ADDRESSES, b"key"))
        with pytest.raises(InvalidDocument):
            loads_restricted(whole[: data.draw(st.integers(0, len(whole) - 1))])

    @given(st.dictionaries(st.text(), st.lists(st.tuples(st.text(), st.integers(0, 65535)), min_size=1), min_size=1))
    def test_addresses_come_through(self, addresses: dict[str, list[tuple[str, int]]]) -> None:
        assert parse_worker_addresses(codec.dumps_base64((addresses, b"key"))) == (addresses, b"key")


class TestRegistration:
    """Anybody can register as the host of rank 0, and is then called."""

    BODY = dumps_base64((ADDRESSES, b"key"))

    def test_stock_registers_whoever_comes(self, stock: Place) -> None:
        assert stock.ask("PUT", "/worker_addresses/nobody:0", self.BODY)[0] == 200
        assert stock.driver.registered[0][0] == "nobody"

    @pytest.mark.parametrize("who", ["nobody:0", "a:1", "a:x", "a", ":"])
    def test_only_assigned_ranks_may(self, adapted: Place, who: str) -> None:
        assert adapted.ask("PUT", f"/worker_addresses/{who}", self.BODY)[0] == 400
        assert adapted.driver.registered == []

    @pytest.mark.parametrize("elsewhere", ["10.0.0.7", "127.0.0.2", "::1", "localhost", ""])
    def test_nobody_may_register_another_address_than_its_own(self, adapted: Place, elsewhere: str) -> None:
        path, there = "/worker_addresses/a:0", (elsewhere, 4711)
        assert adapted.ask("PUT", path, dumps_base64(({"lo": [there]}, b"key")))[0] == 400
        assert adapted.driver.registered == []
        assert (
            adapted.ask("PUT", path, dumps_base64(({"eth0": [there], "lo": [there, *ADDRESSES["lo"]]}, b"key")))[0]
            == 200
        )
        assert adapted.driver.registered == [("a", 0, ADDRESSES, b"key")]

    def test_an_address_has_more_than_one_spelling(self) -> None:
        spelt = {"eth0": [("fd00:0::0:7", 1), ("fd00::8", 2)]}
        assert only_at("fd00::7", spelt) == {"eth0": [("fd00:0::0:7", 1)]}


class Rogue:
    """Answers with a bomb, after so many pings, signed with the key that it registered itself or another one."""

    def __init__(self, bomb: Bomb, pings: int, signature: bytes | None = None) -> None:
        self.key = secret.make_secret_key()
        self._bomb, self._pings, self._signature = bomb, pings, signature or self.key
        self._server = socket.create_server(("127.0.0.1", 0))
        self.addresses = {"lo": [self._server.getsockname()]}
        self._answered = in_thread(self._answer)

    def _answer(self) -> None:
        asked, wire = network.Wire(self.key), network.Wire(self._signature)
        for index in range(self._pings + 1):
            connection, address = self._server.accept()
            with connection, connection.makefile("rwb") as stream:
                asked.read(stream)
                ping = network.PingResponse(WorkerNotificationService.NAME, address[0])
                wire.write(ping if index < self._pings else self._bomb, stream)

    def close(self) -> None:
        """When it has answered."""
        self._answered.result(SOON)
        self._server.close()


class TestAnswer:
    """What a rank answers to a notification is unpickled, too."""

    def test_stock_executes_it(self, tmp_path: Path) -> None:
        rogue = Rogue(Bomb(tmp_path / "executed"), pings=1)
        client = WorkerNotificationClient(rogue.addresses, rogue.key, 0)
        client.notify_hosts_updated(1.0, HostUpdateResult.mixed)
        rogue.close()
        assert (tmp_path / "executed").exists()

    def test_only_two_known_classes_are_unpickled(self, tmp_path: Path) -> None:
        rogue = Rogue(Bomb(tmp_path / "executed"), pings=0)
        with pytest.raises(InvalidDocument, match="system is not expected"):
            NotificationClient(rogue.addresses, rogue.key).notify_hosts_updated(1.0, HostUpdateResult.mixed)
        rogue.close()
        assert not (tmp_path / "executed").exists()

    def test_a_wrong_digest_is_refused(self, tmp_path: Path) -> None:
        rogue = Rogue(Bomb(tmp_path / "executed"), pings=0, signature=secret.make_secret_key())
        with pytest.raises(InvalidDocument, match="digest"):
            NotificationClient(rogue.addresses, rogue.key).notify_hosts_updated(1.0, HostUpdateResult.mixed)
        rogue.close()
        assert not (tmp_path / "executed").exists()


class TestAddress:
    """It listens on every address, with a backlog of 5."""

    def test_stock_listens_everywhere(self, stock: Place) -> None:
        assert stock.server._httpd.socket.getsockname()[0] == "0.0.0.0"
        assert RendezvousHTTPServer.request_queue_size == 5

    def test_listens_on_one_address(self, adapted: Place) -> None:
        listening = [each for each in psutil.Process().net_connections("tcp") if each.status == psutil.CONN_LISTEN]
        assert [each.laddr for each in listening] == [("127.0.0.1", adapted.port)]

    def test_listens_on_a_given_port_again_at_once(self) -> None:
        port = 0
        for _ in range(2):
            place = Place(RendezvousServer("127.0.0.1", port), ElasticHandler(Driver(), print), Driver(), [])
            with running(place):
                place.ask("PUT", "/global/key", b"value")  # leaves a connection in TIME_WAIT
                assert port in (0, place.port)
                port = place.port

    def test_takes_many_connections_at_once(self, adapted: Place) -> None:
        waiting = [socket.create_connection(("127.0.0.1", adapted.port), timeout=1) for _ in range(64)]
        for each in waiting:
            each.close()


class TestWaitingGet:
    """Ranks ask every 10 ms whether a key is there."""

    def test_stock_says_no_at_once(self, stock: Place) -> None:
        assert stock.ask("GET", "/global/key") == (404, b"")

    def test_is_answered_when_the_key_comes(self, adapted: Place) -> None:
        answer = in_thread(lambda: adapted.ask("GET", "/global/key"))
        wait_until(lambda: ("global", "key") in adapted.server._store._waiting)
        adapted.ask("PUT", "/global/other", b"no")
        assert not answer.done()
        adapted.ask("PUT", "/global/key", b"value")
        assert answer.result(SOON) == (200, b"value")

    def test_is_hung_up_on_when_the_server_stops(self, adapted: Place) -> None:
        answer = in_thread(lambda: adapted.ask("GET", "/global/key"))
        wait_until(lambda: ("global", "key") in adapted.server._store._waiting)
        adapted.server.stop()
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            answer.result(SOON)
        adapted.server = RendezvousServer("127.0.0.1")  # for the fixture to stop
        adapted.server.start(ElasticHandler(adapted.driver, print))

    def test_is_answered_at_once_when_the_key_is_there(self, adapted: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rendezvous_server, "LONG_POLL", 2 * SOON)
        adapted.ask("PUT", "/global/key", b"value")
        assert adapted.ask("GET", "/global/key") == (200, b"value")

    def test_ends_when_no_key_comes(self, adapted: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rendezvous_server, "LONG_POLL", 0.01)
        assert adapted.ask("GET", "/global/key") == (404, b"")


class TestNextAssignment:
    """A rank asks for its next rank before Horovod's C++ side does, and both count once."""

    def test_is_repeated_by_the_next_rank_and_size(self, adapted: Place) -> None:
        answer = adapted.ask("GET", f"/{NEXT_ASSIGNMENT}/a:0")
        assert answer == (200, b"3,5,0,1,0,5")
        assert adapted.ask("GET", "/rank_and_size/a:0") == answer
        assert adapted.driver.asked == ["a"]

    def test_is_repeated_once(self, adapted: Place) -> None:
        adapted.ask("GET", f"/{NEXT_ASSIGNMENT}/a:0")
        adapted.ask("GET", "/rank_and_size/a:0")
        adapted.ask("GET", "/rank_and_size/a:0")
        assert adapted.driver.asked == ["a", "a"]

    def test_of_another_rank_is_not_repeated(self, adapted: Place) -> None:
        adapted.ask("GET", f"/{NEXT_ASSIGNMENT}/a:0")
        adapted.ask("GET", "/rank_and_size/b:0")
        assert adapted.driver.asked == ["a", "b"]

    def test_says_who_is_out(self, adapted: Place) -> None:
        adapted.driver.left.add("a")
        assert adapted.ask("GET", f"/{NEXT_ASSIGNMENT}/a:0")[1].startswith(b"-1,")


def test_a_rank_is_connected_when_it_deletes_its_key_of_the_process_set(adapted: Place) -> None:
    adapted.ask("DELETE", "/global/0")
    adapted.ask("DELETE", "/cross_0/1")
    assert adapted.joined == []
    adapted.ask("DELETE", "/cross_0_process_set_hash_1234/1")
    assert adapted.joined == ["1"]


class TestRequests:
    """What no rank of ours would send."""

    @pytest.mark.parametrize(
        "request_",
        [
            b"nonsense\r\n\r\n",
            b"GET / HTTP/1.1\r\n\r\n",
            b"GET /global HTTP/1.1\r\n\r\n",
            b"BREW /pot/0 HTTP/1.1\r\n\r\n",
            b"PUT /global/0 HTTP/1.1\r\nContent-Length: minus\r\n\r\n",
            b"PUT /global/0 HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n",
            b"GET /rank_and_size/nobody HTTP/1.1\r\n\r\n",
            b"PUT /global/0 HTTP/1.1\r\n" + b"X: y\r\n" * 200_000,
        ],
    )
    def test_are_refused(self, adapted: Place, request_: bytes) -> None:
        with socket.create_connection(("127.0.0.1", adapted.port), timeout=SOON) as connection:
            connection.sendall(request_)
            assert connection.recv(100).startswith(b"HTTP/1.1 400 ")

    def test_may_come_in_pieces(self, adapted: Place) -> None:
        with socket.create_connection(("127.0.0.1", adapted.port), timeout=SOON) as connection:
            for piece in (b"PUT /glo", b"bal/0 HTTP/1.1\r\ncontent-length: 5\r", b"\n\r\nva", b"lue"):
                connection.sendall(piece)
            assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
        assert adapted.ask("GET", "/global/0") == (200, b"value")

    def test_of_a_world_that_is_over_are_forgotten(self, adapted: Place) -> None:
        adapted.ask("PUT", "/global/0", b"old")
        adapted.server.init([SlotInfo("a", 0, 0, 0, 1, 1, 1)])
        adapted.ask("PUT", "/global/0", b"new")
        assert adapted.ask("GET", "/global/0") == (200, b"new")

    def test_end_a_scope_when_all_ranks_are_done(self, adapted: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rendezvous_server, "LONG_POLL", 0.01)
        adapted.server.init([SlotInfo("a", rank, 0, rank, 2, 1, 2) for rank in (0, 1)])
        adapted.ask("PUT", "/global/0", b"value")
        adapted.ask("DELETE", "/global/0")
        assert adapted.ask("GET", "/global/0") == (200, b"value")
        adapted.ask("DELETE", "/global/1")
        assert adapted.ask("GET", "/global/0") == (404, b"")
