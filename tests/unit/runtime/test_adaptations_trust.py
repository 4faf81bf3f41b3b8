"""Whom the rendezvous believes what: rows of the table in :mod:`elastic_runtime.engines.horovod`.

Beside stock Horovod.
"""

from __future__ import annotations

import base64
import os
import pickle
import socket
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from horovod.runner.common.util import codec, network, secret
from horovod.runner.elastic.worker import HostUpdateResult, WorkerNotificationClient, WorkerNotificationService
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.engines.horovod.rendezvous import (
    NotificationClient,
    loads_restricted,
    only_at,
    parse_worker_addresses,
)
from elastic_runtime.errors import InvalidDocument
from tests.unit.runtime.driver_bench import SOON, in_thread
from tests.unit.runtime.rendezvous_bench import Place

dumps_base64 = partial(codec.dumps_base64, to_ascii=False)
ADDRESSES = {"lo": [("127.0.0.1", 4711)]}


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
