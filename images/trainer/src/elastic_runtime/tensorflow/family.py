"""TensorFlow's state as arrays of numpy's in host memory: variables are read into them and assigned from them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from typing_extensions import override

from elastic_runtime.checkpoint.checkpoints import PartStream
from elastic_runtime.tensorflow import arrays
from elastic_runtime.tensorflow.arrays import Array
from elastic_runtime.tensorflow.states import state_of, trained_of
from elastic_runtime.training.family import Family, HasState, HostCopies, Tree


class TensorFlowFamily(Family):
    """TensorFlow's side of the training helpers."""

    suffix = ".safetensors"

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
        return arrays.outline(tree)

    @override
    def from_outline(self, data: bytes) -> tuple[Tree, list[Array]]:
        return arrays.from_outline(data)

    @override
    def sendable(self, tensor: Array) -> Array:
        return np.ascontiguousarray(tensor)

    @override
    def target(self, mine: Array | None, like: Array) -> Array:
        if mine is not None and _alike(mine, like) and mine.flags.writeable and mine.flags.c_contiguous:
            return mine
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
    def write(self, tree: Tree, stream: PartStream) -> None:
        arrays.write(tree, stream)

    @override
    def read(self, stream: IO[bytes], size: int) -> Tree:
        return arrays.read(stream, size)

    @override
    def unfit(self, tensor: Array) -> str:
        return "" if arrays.has_type(tensor) else f"an array of {tensor.dtype}"

    @override
    def check(self, tree: Tree) -> None:
        arrays.from_outline(arrays.outline(tree))

    def profiling(self, _folder: Path, _asked: str) -> None:
        """None: torch's profiler is what a run can be profiled with."""
        return


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
