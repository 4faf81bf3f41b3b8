"""A writer of the store, who knows how trees of tensors are written: a part holds what it claims, or is refused."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from elastic_runtime.errors import InvalidDocument
from elastic_runtime.torch.family import TORCH
from elastic_runtime.training import tensor_files
from tests.bounded_memory import bounded_memory

Change = Callable[[dict[str, Any]], object]


def written(tree: Any) -> bytes:
    stream = io.BytesIO()
    tensor_files.write(TORCH, tree, stream)  # type: ignore[arg-type]
    return stream.getvalue()


def read(data: bytes) -> Any:
    return tensor_files.read(TORCH, io.BytesIO(data), len(data))


def forged(change: Change, content: bytes = bytes(24)) -> bytes:
    """A file of one tensor, ``a``, of six numbers, whose header is changed."""
    header = json.loads(tensor_files.outline(TORCH, {"a": torch.zeros(6)}))
    change(header)
    data = json.dumps(header).encode()
    return len(data).to_bytes(8, "little") + data + content


def tensor(**changes: Any) -> bytes:
    return forged(lambda header: header["a"].update(changes))


def tree(value: Any) -> bytes:
    return forged(lambda header: header["__metadata__"].update(tree=json.dumps(value)))


def wide(value: Any) -> bytes:
    """Of four million elements."""

    def change(header: dict[str, Any]) -> None:
        header["__metadata__"]["tree"] = json.dumps(value)
        header["a"].update(dtype="U8", shape=[4 << 20], data_offsets=[0, 4 << 20])

    return forged(change, bytes(4 << 20))


def deep(levels: int, before: str = "[", after: str = "]") -> bytes:
    text = before * levels + '{"$tensor": 0}' + after * levels
    return forged(lambda header: header["__metadata__"].update(tree=text))


def viewed(name: object, shape: list[int]) -> bytes:
    def change(header: dict[str, Any]) -> None:
        header["__metadata__"]["types"] = json.dumps({"0": name})
        header["a"].update(dtype="U8", shape=shape, data_offsets=[0, 24])

    return forged(change)


def test_the_attacker_can_write_what_is_read() -> None:
    assert read(forged(lambda header: None))["a"].tolist() == [0] * 6
    assert read(deep(30)) is not None


FORGED = {
    "nothing": b"",
    "a header of no length": bytes(8),
    "of 2**64 bytes": b"\xff" * 8 + b"{}",
    "one byte less": written({"a": torch.ones(3)})[:-1],
    "one byte more": written({"a": torch.ones(3)}) + b"\0",
    "no header": forged(lambda header: None)[:8] + b"\xff" * 400,
    "10**12 elements": tensor(shape=[10**12]),
    "2**64 elements": tensor(shape=[2**62, 4]),
    "sizes below 0": tensor(shape=[-6, -1]),
    "sizes of true": tensor(shape=[True, 6]),
    "a size of a fraction": tensor(shape=[6.0]),
    "100 dimensions": tensor(shape=[1] * 100 + [6]),
    "nothing times 2**62": forged(
        lambda header: header["a"].update(shape=[0, 2**62, 2**62], data_offsets=[0, 0]), content=b""
    ),
    "more bytes than there are": tensor(shape=[10**12 // 4], data_offsets=[0, 10**12]),
    "a hole": forged(lambda header: header["a"].update(data_offsets=[24, 48]), bytes(48)),
    "another's bytes": forged(lambda header: header.update(b=dict(header["a"]))),
    "an unknown type": tensor(dtype="O"),
    "a type that is none": viewed("float31", [24]),
    "one that is no type": viewed("load", [24]),
    "one of another size": viewed("complex128", [24]),
    "one that is no name": viewed(5, [24]),
    "a quantized one": viewed("quint8", [24, 1]),
    "no metadata": forged(lambda header: header.pop("__metadata__")),
    "metadata of numbers": forged(lambda header: header.update(__metadata__=[1])),
    "another framework": forged(lambda header: header["__metadata__"].update(format="np")),
    "one tensor many times": tree([{"$tensor": 0}] * 1000),
    "a tensor that is not there": tree([{"$tensor": 0}, {"$tensor": 1}]),
    "one that is left out": tree([]),
    "a tensor as a set": tree({"$set": {"$tensor": 0}}),
    "one as a complex number": tree({"$complex": {"$tensor": 0}}),
    "one as an OrderedDict": forged(
        lambda header: (
            header["__metadata__"].update(tree='{"$ordered": {"$tensor": 0}}'),
            header["a"].update(shape=[3, 2]),
        )
    ),
    "its elements as items": wide({"$items": [{"$tensor": 0}]}),
    "its elements as counts": wide({"$counter": [{"$tensor": 0}]}),
    "none in its place": tree([{"$tensor": 0}, {"$tensor": None}]),
    "false in its place": tree([{"$tensor": False}]),
    "an unknown tag": tree({"$call": [{"$tensor": 0}]}),
    "a tuple of a number": tree({"$tuple": 5}),
    "items of none": tree({"$items": [5]}),
    "a list as a key": tree({"$items": [[[], {"$tensor": 0}]]}),
    "bytes of no alphabet": tree([{"$tensor": 0}, {"$bytes": "\u00ff"}]),
    "a device that is none": tree([{"$tensor": 0}, {"$device": "disk"}]),
    "a type by another name": tree([{"$tensor": 0}, {"$dtype": "load"}]),
    "attributes of no dict": tree({"$ordered": {"a": {"$tensor": 0}}, "vars": 5}),
    "so deep": deep(300),
    "so deep that Python ends": deep(200_000),
    "tuples so deep": deep(130, '{"$tuple": [', "]}"),
}


@pytest.mark.parametrize("data", FORGED.values(), ids=FORGED)
def test_what_somebody_else_has_written_is_refused(data: bytes) -> None:
    with bounded_memory(), pytest.raises(InvalidDocument) as refused:
        read(data)
    assert len(str(refused.value)) < 500
    assert str(refused.value).isprintable()
