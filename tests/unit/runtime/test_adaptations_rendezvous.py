"""The rendezvous server's rows of the table in :mod:`elastic_runtime.engines.horovod`, beside stock Horovod.

Whom it believes what: test_adaptations_trust.
"""

from __future__ import annotations

import http.client
import socket

import psutil
import pytest
from horovod.runner.common.util.hosts import SlotInfo
from horovod.runner.http.http_server import RendezvousHTTPServer

from elastic_runtime.engines.horovod import rendezvous_server
from elastic_runtime.engines.horovod.driver import ElasticHandler
from elastic_runtime.engines.horovod.rendezvous_server import NEXT_ASSIGNMENT, RendezvousServer
from tests.unit.runtime.driver_bench import SOON, in_thread, wait_until
from tests.unit.runtime.rendezvous_bench import Driver, Place, running


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
            place = Place(RendezvousServer("127.0.0.1", port), ElasticHandler(Driver(), print, print), Driver(), [])
            with running(place):
                place.ask("PUT", "/global/3", b"value")  # leaves a connection in TIME_WAIT
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
        answer = in_thread(lambda: adapted.ask("GET", "/global/3"))
        wait_until(lambda: ("global", "3") in adapted.server._store._waiting)
        adapted.ask("PUT", "/global/rank_3", b"no")
        assert not answer.done()
        adapted.ask("PUT", "/global/3", b"value")
        assert answer.result(SOON) == (200, b"value")

    def test_is_hung_up_on_when_the_server_stops(self, adapted: Place) -> None:
        answer = in_thread(lambda: adapted.ask("GET", "/global/3"))
        wait_until(lambda: ("global", "3") in adapted.server._store._waiting)
        adapted.server.stop()
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            answer.result(SOON)
        adapted.server = RendezvousServer("127.0.0.1")  # for the fixture to stop
        adapted.server.start(ElasticHandler(adapted.driver, print, print))

    def test_is_answered_at_once_when_the_key_is_there(self, adapted: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rendezvous_server, "LONG_POLL", 2 * SOON)
        adapted.ask("PUT", "/global/3", b"value")
        assert adapted.ask("GET", "/global/3") == (200, b"value")

    def test_ends_when_no_key_comes(self, adapted: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rendezvous_server, "LONG_POLL", 0.01)
        assert adapted.ask("GET", "/global/3") == (404, b"")


class TestNextAssignment:
    """A rank asks for its next rank before Horovod's C++ side does, and both count once."""

    def test_is_repeated_by_the_next_rank_and_size(self, adapted: Place) -> None:
        answer = adapted.ask("GET", f"/{NEXT_ASSIGNMENT}/a:0")
        assert answer == (200, b"3,5,0,1,3,5")
        assert adapted.ask("GET", "/rank_and_size/a:0") == answer
        assert adapted.driver.asked == ["a"]

    def test_is_repeated_once(self, adapted: Place) -> None:
        adapted.ask("GET", f"/{NEXT_ASSIGNMENT}/a:0")
        adapted.ask("GET", "/rank_and_size/a:0")
        adapted.ask("GET", "/rank_and_size/a:0")
        assert adapted.driver.asked == ["a", "a"]

    def test_of_another_rank_is_not_repeated(self, adapted: Place) -> None:
        adapted.ask("GET", f"/{NEXT_ASSIGNMENT}/a:0")
        adapted.ask("GET", "/rank_and_size/b:0", host="b")
        assert adapted.driver.asked == ["a", "b"]

    def test_says_who_is_out(self, adapted: Place) -> None:
        adapted.driver.left.add("a")
        assert adapted.ask("GET", f"/{NEXT_ASSIGNMENT}/a:0")[1].startswith(b"-1,")


def test_a_rank_is_connected_when_it_deletes_its_key_of_the_process_set(adapted: Place) -> None:
    adapted.ask("DELETE", "/global/3")
    adapted.ask("DELETE", "/cross_0/3")
    assert adapted.joined == []
    adapted.ask("DELETE", "/cross_0_process_set_hash_1234/1")
    assert adapted.joined == ["a"]


class TestRequests:
    """What other than ranks would send is in tests/security/runtime."""

    def test_may_come_in_pieces(self, adapted: Place) -> None:
        header = f"Authorization: {adapted.token('a')['Authorization']}\r\n".encode()
        with socket.create_connection(("127.0.0.1", adapted.port), timeout=SOON) as connection:
            for piece in (b"PUT /glo", b"bal/3 HTTP/1.1\r\n", header, b"content-length: 5\r", b"\n\r\nva", b"lue"):
                connection.sendall(piece)
            assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
        assert adapted.ask("GET", "/global/3") == (200, b"value")

    def test_of_a_world_that_is_over_are_forgotten(self, adapted: Place) -> None:
        adapted.ask("PUT", "/global/3", b"old")
        adapted.server.init([SlotInfo("a", 3, 0, 3, 5, 1, 5)])
        adapted.ask("PUT", "/global/3", b"new")
        assert adapted.ask("GET", "/global/3") == (200, b"new")

    def test_end_a_scope_when_all_ranks_are_done(self, adapted: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rendezvous_server, "LONG_POLL", 0.01)
        adapted.driver.ranks = {"a": 0, "b": 1}
        adapted.server.init([SlotInfo(host, rank, 0, rank, 2, 1, 2) for rank, host in enumerate("ab")])
        adapted.ask("PUT", "/global/0", b"value")
        adapted.ask("DELETE", "/global/0")
        assert adapted.ask("GET", "/global/0") == (200, b"value")
        adapted.ask("DELETE", "/global/1", host="b")
        assert adapted.ask("GET", "/global/0") == (404, b"")

    def test_end_what_a_rank_has_stored_for_a_process_set(
        self, adapted: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(rendezvous_server, "LONG_POLL", 0.01)
        scope = "/cross_0_process_set_hash_1234"
        for key in ("rank_1", "1"):
            adapted.ask("PUT", f"{scope}/{key}", b"value")
        adapted.ask("DELETE", f"{scope}/1")
        assert [adapted.ask("GET", f"{scope}/{key}")[0] for key in ("rank_1", "1")] == [404, 404]
