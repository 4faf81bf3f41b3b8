"""Trees of numpy's arrays as files that are safe to read: `safetensors`_, whose reader exists for many languages.

Eight bytes with the length of the header, the header as JSON, and the arrays' bytes one after another. Arrays are named
by their numbers; what is around them is in the header's ``__metadata__``, under ``tree``, as JSON in which an array is
``{"$array": NUMBER}``, and else :mod:`~elastic_runtime.training.plain`.

.. _safetensors: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import IO, Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from elastic_runtime.checkpoint.checkpoints import PartStream
from elastic_runtime.documents import parse_json
from elastic_runtime.errors import InvalidDocument
from elastic_runtime.printable import printable
from elastic_runtime.training import plain
from elastic_runtime.training.family import Tree

Array = NDArray[Any]
_TYPES: dict[str, np.dtype[Any]] = {
    **{f"F{bits}": np.dtype(f"<f{bits // 8}") for bits in (16, 32, 64)},
    **{f"I{bits}": np.dtype(f"<i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"U{bits}": np.dtype(f"<u{bits // 8}") for bits in (8, 16, 32, 64)},
    "BOOL": np.dtype(bool),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
_NAMES = {kind: name for name, kind in _TYPES.items()}
_LARGEST_HEADER = 64 << 20
"""Bytes; some 100 for each array."""
_DEEPEST = 64
"""Containers within each other."""
_PIECE = 1 << 20
"""Bytes that are written at a time."""


def has_type(array: Array) -> bool:
    """Whether the format has its type."""
    return array.dtype in _NAMES


def outline(tree: Tree) -> bytes:
    """The header of :func:`write`: everything but the arrays' content.

    Raises:
        NotPlain: something in it is neither an array, of a type that the format has, nor plain.
    """
    arrays: list[Array] = []
    structure = _encode(tree, arrays)
    header: dict[str, Any] = {"__metadata__": {"format": "np", "tree": json.dumps(structure, allow_nan=False)}}
    end = 0
    for number, array in enumerate(arrays):
        start, end = end, end + array.nbytes
        header[str(number)] = {"dtype": _NAMES[array.dtype], "shape": array.shape, "data_offsets": [start, end]}
    return json.dumps(header).encode()


def from_outline(data: bytes) -> tuple[Tree, list[Array]]:
    """The tree, and its arrays by number: they have types and shapes, but no memory of their own.

    Raises:
        InvalidDocument: it is no such header.
    """
    likes: list[Array] = []
    found: list[int] = []
    try:
        header = parse_json(data)
        structure = parse_json(header.pop("__metadata__")["tree"])
        end = 0
        for number in range(len(header)):
            entry = header[str(number)]
            kind, shape, (start, stop) = _TYPES[entry["dtype"]], tuple(entry["shape"]), entry["data_offsets"]
            if any(type(size) is not int or size < 0 for size in shape) or start != end:
                raise InvalidDocument("an array of no such shape, or not where the one before it ends")
            end += math.prod(shape) * kind.itemsize
            if stop != end:
                raise InvalidDocument("an array that is not as long as its shape says")
            likes.append(np.broadcast_to(np.zeros((), kind), shape))
        tree = _decode(structure, likes, found, 0)
    except InvalidDocument:
        raise
    except Exception as error:  # what was made to mislead a parser may raise anything, and means no more than torn
        raise InvalidDocument(f"not the header of a tree: {printable(error)}") from error
    if found != list(range(len(likes))):
        raise InvalidDocument("its tree does not hold each array once, in order")
    return tree, likes


def write(tree: Tree, stream: PartStream) -> None:
    """Arrays are contiguous, and not written to meanwhile."""
    header = outline(tree)
    header += b" " * (-len(header) % 8)
    stream.write(len(header).to_bytes(8, "little") + header)
    arrays: list[Array] = []
    _encode(tree, arrays)
    for array in arrays:
        data = _bytes_of(array)
        for start in range(0, len(data), _PIECE):
            stream.write(data[start : start + _PIECE])


def read(stream: IO[bytes], size: int) -> Tree:
    """What :func:`write` wrote; takes no more memory than the file has bytes.

    Args:
        stream: at its start.
        size: bytes that it has.

    Raises:
        InvalidDocument: it is something else, or torn.
    """
    length = int.from_bytes(stream.read(8), "little")
    if not 2 <= length <= min(size - 8, _LARGEST_HEADER):
        raise InvalidDocument("it has no header, or one of a senseless size")
    tree, likes = from_outline(stream.read(length))
    if sum(like.nbytes for like in likes) != size - 8 - length:
        raise InvalidDocument("its arrays are not as long as it says")
    arrays = iter([_read_array(stream, like) for like in likes])
    return _placed(tree, arrays)


def _read_array(stream: IO[bytes], like: Array) -> Array:
    array: Array = np.empty(like.shape, like.dtype)
    if array.size:
        view = _bytes_of(array)
        while view:
            data = stream.read(min(len(view), _PIECE))
            if not data:
                raise InvalidDocument("it ends in the middle of an array")
            view[: len(data)] = data
            view = view[len(data) :]
    return array


def _bytes_of(array: Array) -> memoryview:
    return memoryview(array.reshape(-1).view(np.uint8).data)


def _placed(tree: Tree, arrays: Iterator[Array]) -> Tree:
    """The tree with these arrays instead of its own, in their order."""
    if isinstance(tree, np.ndarray):
        return next(arrays)
    if isinstance(tree, dict):
        return {key: _placed(value, arrays) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_placed(value, arrays) for value in tree]
    return tuple(_placed(value, arrays) for value in tree) if isinstance(tree, tuple) else tree


def _encode(tree: Tree, arrays: list[Array]) -> Any:
    if isinstance(tree, np.ndarray):
        if not has_type(tree):
            raise plain.NotPlain(f"numpy array of {tree.dtype}")
        arrays.append(tree)
        return {"$array": len(arrays) - 1}
    if type(tree) is dict:
        if all(type(key) is str and not key.startswith("$") for key in tree):
            return {key: _encode(value, arrays) for key, value in tree.items()}
        return {"$items": [[plain.encode(key), _encode(value, arrays)] for key, value in tree.items()]}
    if type(tree) is list:
        return [_encode(value, arrays) for value in tree]
    if type(tree) is tuple:
        return {"$tuple": [_encode(value, arrays) for value in tree]}
    return plain.encode(tree)


def _decode(structure: Any, arrays: list[Array], found: list[int], depth: int) -> Tree:
    def inside(value: Any) -> Tree:
        return _decode(value, arrays, found, depth + 1)

    if depth > _DEEPEST:
        raise InvalidDocument("it is nested too deep")
    if isinstance(structure, list):
        return [inside(value) for value in structure]
    if not isinstance(structure, dict):
        return structure
    if "$array" in structure:
        found.append(structure["$array"])
        return arrays[structure["$array"]]
    if "$tuple" in structure:
        return tuple(inside(value) for value in structure["$tuple"])
    if "$items" in structure:
        return {plain.decode(key): inside(value) for key, value in structure["$items"]}
    return (
        plain.decode(structure) if "$float" in structure else {key: inside(value) for key, value in structure.items()}
    )
