"""Whom the rendezvous believes what: rows of the table in :mod:`elastic_runtime.engines.horovod`.

What stock Horovod does; that ours does not is shown in ``tests/security/runtime``.
"""

from __future__ import annotations

import base64
import os
import pickle
from pathlib import Path
from typing import Any

from horovod.runner.common.util import codec

from tests.unit.runtime.rendezvous_bench import Place

ADDRESSES = {"lo": [("127.0.0.1", 4711)]}


class Bomb:
    """Unpickling it runs a command."""

    def __init__(self, target: Path) -> None:
        self.command = f"touch {target}"

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


def bomb(target: Path) -> bytes:
    """As a rank would register it."""
    return base64.b64encode(pickle.dumps((ADDRESSES, Bomb(target))))


def test_stock_executes_what_it_is_sent(stock: Place, tmp_path: Path) -> None:
    stock.ask("PUT", "/worker_addresses/nobody:0", bomb(tmp_path / "executed"))
    assert (tmp_path / "executed").exists()


def test_ours_does_not(adapted: Place, tmp_path: Path) -> None:
    """Not even a rank's own."""
    assert adapted.ask("PUT", "/worker_addresses/a:0", bomb(tmp_path / "executed"))[0] == 403
    assert not (tmp_path / "executed").exists()


def test_stock_registers_whoever_comes(stock: Place) -> None:
    assert stock.ask("PUT", "/worker_addresses/nobody:0", codec.dumps_base64((ADDRESSES, b"key")))[0] == 200
    assert stock.driver.registered == ["nobody"]


def test_stock_counts_whoever_asks(stock: Place) -> None:
    assert stock.ask("GET", "/rank_and_size/nobody:0")[0] == 200
    assert stock.driver.asked == ["nobody"]
