"""Trees of arrays as files: what is written is read, and nothing else is."""

from __future__ import annotations

import io
import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from elastic_runtime.errors import InvalidDocument
from elastic_runtime.tensorflow import arrays
from elastic_runtime.training.plain import NotPlain

TREE = {
    "weights": [np.arange(6, dtype=np.float32).reshape(2, 3), np.array(7, np.int64), np.zeros((0, 4), np.float16)],
    "half": np.array([1.5, -2], ml_dtypes.bfloat16),
    "flags": (np.array([True, False]), None, 2.5, float("inf"), "text"),
    "odd": {1: np.uint8([255]), "$array": np.int8([-1])},
}


def written(tree: Any) -> bytes:
    stream = io.BytesIO()
    arrays.write(tree, stream)  # type: ignore[arg-type]
    return stream.getvalue()


def read(data: bytes) -> Any:
    return arrays.read(io.BytesIO(data), len(data))


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def test_what_is_written_is_read() -> None:
    assert same(read(written(TREE)), TREE)


def test_the_outline_tells_shapes_without_content() -> None:
    tree, likes = arrays.from_outline(arrays.outline(TREE))
    assert [like.shape for like in likes] == [(2, 3), (), (0, 4), (2,), (2,), (1,), (1,)]
    assert tree["flags"][1:] == (None, 2.5, float("inf"), "text")


@pytest.mark.parametrize("value", [np.array(["text"]), np.array([object()]), np.complex64([1]), object()])
def test_what_the_format_has_not_is_refused(value: Any) -> None:
    with pytest.raises(NotPlain):
        written([value])


def forged(change: Any, content: int = 24) -> bytes:
    """A file of one array, whose header is changed."""
    header = json.loads(arrays.outline([np.zeros(6, np.float32)]))
    change(header)
    data = json.dumps(header).encode()
    return len(data).to_bytes(8, "little") + data + bytes(content)


def tree(value: Any) -> Any:
    return lambda header: header["__metadata__"].update(tree=json.dumps(value))


def deep(levels: int) -> Any:
    text = "[" * levels + '{"$array": 0}' + "]" * levels
    return lambda header: header["__metadata__"].update(tree=text)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 8,
        b"\xff" * 8 + b"{}",
        written(TREE)[:-1],
        written(TREE) + b"\0",
        forged(lambda header: header["0"].update(shape=[10**12])),
        forged(lambda header: header["0"].update(shape=[2**62, 4])),
        forged(lambda header: header["0"].update(shape=[-6, -1])),
        forged(lambda header: header["0"].update(shape=[1] * 100 + [6])),
        forged(lambda header: header["0"].update(data_offsets=[0, 10**12], shape=[10**12 // 4])),
        forged(lambda header: header["0"].update(data_offsets=[24, 48]), 48),
        forged(lambda header: header["0"].update(dtype="O")),
        forged(lambda header: header.update({"2": header["0"]})),
        forged(lambda header: header.pop("__metadata__")),
        forged(tree([{"$array": 0}] * 1000)),
        forged(tree([])),
        forged(tree({"$items": [[{"$array": 0}, 1]]})),
        forged(tree({"$tuple": 5})),
        forged(deep(80)),
        forged(deep(20_000)),
    ],
)
def test_what_somebody_else_has_written_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidDocument):
        read(data)


def test_it_is_the_format_that_the_library_reads() -> None:
    """The checks of its specification: the header's length, ascending offsets from 0, no holes."""
    data = written(TREE)
    length = int.from_bytes(data[:8], "little")
    assert length % 8 == 0
    header = json.loads(data[8 : 8 + length])
    assert all(isinstance(value, str) for value in header.pop("__metadata__").values())
    ends = [0]
    for entry in header.values():
        assert entry["data_offsets"][0] == ends[-1]
        ends.append(entry["data_offsets"][1])
    assert ends[-1] == len(data) - 8 - length
