"""Files that come with a run, made by somebody who wants to get out of their folder, or to fill the worker."""

from __future__ import annotations

import base64
import hashlib
import json
import stat
import tracemalloc
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.agent.scripts import Scripts
from elastic_runtime.errors import InvalidDocument, InvalidSettings
from elastic_runtime.run.shipment import MAX_UNPACKED, pack, unpack
from elastic_runtime.run.spec import MAX_PACKED, Shipment


def forged(whole: bytes, files: int = 1, packed: bytes | None = None) -> Shipment:
    """With a digest that is right."""
    compressed = zlib.compress(whole, 9) if packed is None else packed
    return Shipment(hashlib.sha256(whole).hexdigest(), files, base64.b64encode(compressed).decode())


def of_names(*names: str) -> Shipment:
    return forged(json.dumps(dict.fromkeys(names, "x")).encode(), len(names))


@pytest.mark.parametrize(
    "names",
    [
        ("../escaped",),
        ("a/../../escaped",),
        ("/tmp/escaped",),
        ("",),
        (".",),
        ("a/.",),
        ("a\0b",),
        ("a/b/",),
        ("~root/a",),
        (".bashrc",),
        ("a\n",),
        ("ａ",),
        ("a" * 5000,),
        ("lib", "lib/train.py"),
    ],
)
def test_no_name_leads_out_of_the_folder(names: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(InvalidDocument):
        Scripts.lay_down(of_names(*names), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_bomb_is_not_unpacked() -> None:
    bomb = zlib.compress(b"a" * (180 * 1024 * 1024), 9)
    assert len(bomb) < MAX_PACKED
    shipment = forged(b"", packed=bomb)
    tracemalloc.start()
    with pytest.raises(InvalidDocument, match="more than"):
        unpack(shipment)
    assert tracemalloc.get_traced_memory()[1] < 3 * MAX_UNPACKED
    tracemalloc.stop()


@pytest.mark.parametrize(
    "shipment",
    [
        forged(b"[" * 100_000),
        forged(b'["a"]'),
        forged(b'{"a": 1}'),
        forged(b'{"a": ["x"]}'),
        forged('{"a": "€"}'.encode()),
        forged(b'{"a": "\\ud800"}'),
        forged(b'{"a": "x", "b": "y"}', files=1),
        forged(b'{"a": "x"}', files=2),
        forged(b'{"a": "x"}', packed=zlib.compress(b'{"a": "y"}')),
        forged(b'{"a": "x"}', packed=zlib.compress(b'{"a": "x"}')[:-1]),
        forged(b'{"a": "x"}', packed=zlib.compress(b'{"a": "x"}') + b"more"),
        forged(b'{"a": "x"}', packed=b"no zlib"),
        forged(b'{"a": "x"}', packed=b""),
        Shipment("0" * 64, 1, "no base64 \u20ac"),
        Shipment("0" * 64, 1, "A"),
    ],
)
def test_what_pack_does_not_make_is_refused(shipment: Shipment, tmp_path: Path) -> None:
    with pytest.raises(InvalidDocument):
        Scripts.lay_down(shipment, tmp_path)
    assert list(tmp_path.iterdir()) == []


@given(packed=st.binary(max_size=2000), whole=st.binary(max_size=2000))
def test_nothing_but_the_documented_error_comes_of_bytes(packed: bytes, whole: bytes) -> None:
    for shipment in (forged(whole, packed=packed), forged(whole)):
        with pytest.raises(InvalidDocument):
            unpack(shipment)


@given(at=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_flipped_bit_is_noticed(at: int, bit: int) -> None:
    shipment = pack({"train.py": b"print('x')\n" * 40, "lib/a.py": bytes(range(200))})
    raw = bytearray(base64.b64decode(shipment.packed))
    raw[at % len(raw)] ^= 1 << bit
    try:
        read = unpack(Shipment(shipment.digest, shipment.files, base64.b64encode(bytes(raw)).decode()))
    except InvalidDocument:
        return
    assert read == unpack(shipment)  # zlib's header has bits that say nothing


def test_more_than_a_document_may_hold_is_refused_before_it_is_decoded() -> None:
    with pytest.raises(InvalidSettings):
        Shipment("0" * 64, 1, "A" * (2 * MAX_PACKED))


def test_others_of_the_machine_see_nothing(tmp_path: Path) -> None:
    scripts = Scripts.lay_down(pack({"train.py": b"", "lib/a.py": b""}), tmp_path)
    assert stat.S_IMODE(scripts.folder.stat().st_mode) == 0o700
