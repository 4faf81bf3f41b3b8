"""TensorFlow's state as arrays of numpy's in host memory: variables are read into them and assigned from them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from typing_extensions import override

from elastic_runtime.errors import InvalidDocument
from elastic_runtime.tensorflow.states import Array, state_of, trained_of
from elastic_runtime.training import plain, tensor_files
from elastic_runtime.training.family import Family, HasState, HostCopies, Tree
from elastic_runtime.training.tensor_files import Layout

_TYPES: dict[str, np.dtype[Any]] = {
    **{f"F{bits}": np.dtype(f"<f{bits // 8}") for bits in (16, 32, 64)},
    **{f"I{bits}": np.dtype(f"<i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"U{bits}": np.dtype(f"<u{bits // 8}") for bits in (8, 16, 32, 64)},
    "BOOL": np.dtype(bool),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
_CODES = {kind: code for code, kind in _TYPES.items()}


class TensorFlowFamily(Family):
    """TensorFlow's side of the training helpers."""

    framework = "np"
    makers: Mapping[str, plain.Maker] = {}

    @override
    def is_tensor(self, value: object) -> bool:
        return isinstance(value, np.ndarray)

    @override
    def rebuilt(self, _old: dict[Any, Any], new: dict[Any, Any]) -> dict[Any, Any]:
        return new

    @override
    def copy(self, sources: Sequence[Array], onto: Sequence[Array | None]) -> list[Array]:
        return [_copy(source, buffer) for source, buffer in zip(sources, onto, strict=True)]

    @override
    def in_host_memory(self, _tensor: Array) -> bool:
        return True

    @override
    def to_host(self, tensors: Sequence[Array]) -> HostCopies:
        return HostCopies([np.array(tensor, order="C") for tensor in tensors], lambda: None)

    @override
    def host_memory_like(self, tensor: Array) -> Array:
        # Not zeros_like: that gives pages which are still to be made.
        memory: Array = np.empty(tensor.shape, tensor.dtype)
        memory.fill(0)
        return memory

    @override
    def state_of(self, value: object) -> HasState | None:
        return state_of(value)

    @override
    def over(self, data: bytearray) -> Array:
        return np.frombuffer(data, np.uint8)

    @override
    def outline(self, tree: Tree) -> bytes:
        return tensor_files.outline(self, tree)

    @override
    def from_outline(self, data: bytes) -> tuple[Tree, list[Array]]:
        tree, likes, _ = tensor_files.from_outline(self, data)
        return tree, likes

    @override
    def sendable(self, tensor: Array) -> Array:
        return np.ascontiguousarray(tensor)

    @override
    def target(self, mine: Array | None, like: Array) -> Array:
        """Return a new array: a model's are copies, so one that is received into would pass for kept as it was."""
        return np.empty(like.shape, like.dtype)

    @override
    def trained(self, value: object) -> Tree | None:
        return trained_of(value)

    def put(self, tree: Tree, _live: Tree) -> Tree:
        """The tree: what a script holds on to are variables."""
        return tree

    @override
    def memory(self, tensor: Array) -> tuple[int, int]:
        start = int(tensor.__array_interface__["data"][0])
        return start, start + tensor.nbytes

    @override
    def digests(self, tensors: Sequence[Array]) -> list[str]:
        return [_digest(tensor) for tensor in tensors]

    @override
    def load(self, state: HasState, tree: Tree) -> None:
        state.load_state_dict(tree)

    @override
    def unfit(self, tensor: Array) -> str:
        return "" if tensor.dtype in _CODES else f"an array of {tensor.dtype}"

    @override
    def layout(self, tensor: Array) -> Layout:
        if problem := self.unfit(tensor):
            raise plain.NotPlain(problem)
        return Layout(_CODES[tensor.dtype], tensor.shape)

    @override
    def content(self, tensor: Array) -> memoryview:
        data: memoryview = np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data
        return data

    @override
    def empty(self, layout: Layout) -> Array:
        return np.empty(layout.shape, _type(layout))

    @override
    def like(self, layout: Layout) -> Array:
        return np.broadcast_to(np.zeros((), _type(layout)), layout.shape)

    @override
    def encode(self, value: object) -> Any:
        return plain.refuse(value)

    def profiling(self, _folder: Path, _asked: str) -> None:
        """None: torch's profiler is what a run can be profiled with."""
        return


def _type(layout: Layout) -> np.dtype[Any]:
    if layout.viewed:
        raise InvalidDocument("an array of a type that only another framework has")
    return _TYPES[layout.code]


def _digest(tensor: Array) -> str:
    content = np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data
    return f"{tensor.dtype}{list(tensor.shape)} {hashlib.blake2b(content, digest_size=8).hexdigest()}"


def _copy(source: Array, buffer: Array | None) -> Array:
    if buffer is None or not _alike(source, buffer) or not buffer.flags.writeable:
        return np.array(source, order="C")
    np.copyto(buffer, source)
    return buffer


def _alike(one: Array, other: Array) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype


TENSORFLOW = TensorFlowFamily()
