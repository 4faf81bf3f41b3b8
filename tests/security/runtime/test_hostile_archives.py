"""A writer of the store, who knows what ``torch.load(weights_only=True)`` allows: a small part that unfolds."""

from __future__ import annotations

import io
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from elastic_runtime.errors import InvalidDocument
from elastic_runtime.torch.archives import read_archive

HONEST = {"weight": torch.arange(4.0), "shape": torch.Size([2]), "plain": [1, (2.0, "x"), {True, None}], "raw": b"\xff"}
GIB = 1 << 30
TENSOR = (
    b"ctorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0"
    b"0X\3\0\0\0cpuK\4tQK\0%s%s\x89ccollections\nOrderedDict\n)RtR"
)
"""A tensor of record 0, which has 4 elements; of a size and strides, both as tuples."""
FLAT = TENSOR % (b"J\xff\xff\xff\x7f\x85", b"K\0\x85")
"""2**31 - 1 elements in one."""


DOUBLED = b")q\0" + b"".join(b"h%ch%c\x86q%c" % (n, n, n + 1) for n in range(60))
"""A tuple that holds the one before twice, 60 times."""


def number(value: int) -> bytes:
    data = value.to_bytes(9, "little")
    return b"\x8a\x09" + data


def archive(tree: object) -> bytes:
    stream = io.BytesIO()
    torch.save(tree, stream)
    return stream.getvalue()


def with_pickle(code: bytes) -> bytes:
    """An archive like torch's, of a tensor of four elements, with another pickle."""
    return repacked(archive({"weight": torch.arange(4.0)}), lambda name, data: code if "data.pkl" in name else data)


def repacked(data: bytes, change: Callable[[str, bytes], bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(stream, "w", method) as new:
        for each in old.infolist():
            # Our archives have no CRCs, which zipfile would compare.
            start = (
                each.header_offset + 30 + sum(data[each.header_offset + at] << 8 * (at % 2) for at in (26, 27, 28, 29))
            )
            new.writestr(each.filename, change(each.filename, data[start : start + each.file_size]))
    return stream.getvalue()


def overlapping() -> bytes:
    """Two records that are one."""
    data = archive({"a": torch.zeros(4), "b": torch.ones(4)})
    with zipfile.ZipFile(io.BytesIO(data)) as old:
        first, second = (old.getinfo(f"archive/data/{number}").header_offset for number in (0, 1))
    return data.replace(second.to_bytes(4, "little"), first.to_bytes(4, "little"))


def of_two_directories() -> bytes:
    """Readers that follow the locator, and those that look right before it, see different archives."""
    data = bytearray(archive(HONEST))
    data[-98:-98] = data[-98:-42]
    return bytes(data)


def test_what_torch_saves_is_read() -> None:
    data = archive(HONEST)
    tree = read_archive(io.BytesIO(data), len(data))
    torch.testing.assert_close(tree.pop("weight"), HONEST["weight"], rtol=0, atol=0)
    assert tree == {name: value for name, value in HONEST.items() if name != "weight"}


def test_the_attacker_can_write_what_is_read() -> None:
    data = with_pickle(b"\x80\2" + TENSOR % (b"K\4\x85", b"K\1\x85") + b".")
    torch.testing.assert_close(read_archive(io.BytesIO(data), len(data)), torch.arange(4.0))


PICKLES = {
    "a bytearray of 1 GiB": b"c__builtin__\nbytearray\n" + number(GIB) + b"\x85R",
    "a tensor of 4 GiB": b"ctorch\nFloatTensor\n" + number(GIB) + b"\x85R",
    "a storage of 1 GiB": b"ctorch.storage\nUntypedStorage\n" + number(GIB) + b"\x85R",
    "2**31 elements in four bytes": FLAT,
    "a set of as many": b"c__builtin__\nset\n" + FLAT + b"\x85R",
    "an OrderedDict of as many": b"ccollections\nOrderedDict\n" + FLAT + b"\x85R",
    "a Counter of as many": b"ccollections\nCounter\n" + FLAT + b"\x85R",
    "as many of another type": b"ctorch._utils\n_rebuild_device_tensor_from_cpu_tensor\n("
    + FLAT
    + b"ctorch\nfloat64\nX\3\0\0\0cpu\x89tR",
    "a tensor beyond its storage": TENSOR % (b"K\5\x85", b"K\1\x85"),
    "strides beyond it": TENSOR % (b"K\4\x85", b"K\2\x85"),
    "strides below 0": TENSOR % (b"K\4\x85", b"J\xff\xff\xff\xff\x85"),
    "a size below 0": TENSOR % (b"J\xff\xff\xff\xff\x85", b"K\1\x85"),
    "lists that unfold": b"]q\0" + b"".join(b"](h%ch%ceq%c" % (n, n, n + 1) for n in range(60)),
    "tensors that unfold": TENSOR % (b"K\4\x85", b"K\1\x85") + b"q\0(" + b"h\0" * 100_000 + b"t",
    "a key that takes for ever to hash": DOUBLED + b"q\xff}h\xffK\1s",
    "an element that does": DOUBLED + b"q\xffc__builtin__\nset\n]h\xffa\x85R",
    "a list in itself": b"]q\0h\0a",
    "so deep": b"]" * 100_000 + b"a" * 99_999,
    "a codec of quadratic time": b"c_codecs\nencode\nX\1\0\0\0aX\5\0\0\0" b"idna \x86R",
    "no codec": b"c_codecs\nencode\nX\1\0\0\0aX\4\0\0\0nope\x86R",
    "code": b"cos\nsystem\nX\1\0\0\0a\x85R",
    "a call of what was made": b"](K\1tR",
    "methods that are none": b"ccollections\nOrderedDict\n)R}X\5\0\0\0itemsK\1sb",
    "no values": b"",
    "a value that is not there": b"h\7",
    "a mark that is not there": b"t",
    "bytes that declare more": b"X\xff\xff\xff\x7fa",
    "a number of 1,000 digits as a size": TENSOR % (b"\x8a\xff" + b"\x7f" * 255 + b"\x85", b"K\1\x85"),
    "an operation of another protocol": b"\x96" + (GIB).to_bytes(8, "little"),
}  # fmt: skip


@pytest.mark.parametrize("code", PICKLES.values(), ids=PICKLES)
def test_a_pickle_makes_no_more_than_it_holds(code: bytes) -> None:
    data = with_pickle(b"\x80\2" + code + b".")
    tracemalloc.start()
    try:
        with pytest.raises(InvalidDocument) as refused:
            read_archive(io.BytesIO(data), len(data))
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()
    assert len(str(refused.value)) < 500
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    "data",
    [
        repacked(archive({"weight": torch.zeros(1 << 20)}), lambda name, data: data, zipfile.ZIP_DEFLATED),
        repacked(archive(HONEST), lambda name, data: data) + b"PK\5\6" + bytes(18),
        overlapping(),
        of_two_directories(),
        archive(HONEST)[:-1],
        archive(HONEST) + b"\0",
        b"PK\3\4" + bytes(200),
        bytes(200),
        b"",
        b"\x80\2.",
    ],
    ids=["deflated", "empty", "overlapping", "two directories", "short", "long", "zip", "zeros", "nothing", "legacy"],
)
def test_an_archive_holds_no_more_than_it_has(data: bytes) -> None:
    with pytest.raises(InvalidDocument):
        read_archive(io.BytesIO(data), len(data))


def test_the_environment_does_not_turn_the_check_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Payload:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (tmp_path / "ran",))

    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    data = archive({"weight": Payload()})
    with pytest.raises(InvalidDocument):
        read_archive(io.BytesIO(data), len(data))
    # Nor would torch alone have let itself be turned off, which is given weights_only=True.
    with pytest.raises(Exception, match="Weights only load failed"):
        torch.load(io.BytesIO(data), weights_only=True)
    assert not (tmp_path / "ran").exists()
