"""TensorFlow's state as arrays of numpy's in host memory: variables are read into them and assigned from them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from elastic_runtime.checkpoint.checkpoints import PartStream
from elastic_runtime.tensorflow import arrays
from elastic_runtime.tensorflow.arrays import Array
from elastic_runtime.tensorflow.states import state_of, trained_of
from elastic_runtime.training.family import HasState, HostCopies, Tree


class TensorFlowFamily:
    """Implements :class:`~elastic_runtime.training.family.Family`."""

    suffix = ".safetensors"

    def is_tensor(self, value: object) -> bool:
        """See :class:`Family`."""
        return isinstance(value, np.ndarray)

    def rebuilt(self, _old: dict[Any, Any], new: dict[Any, Any]) -> dict[Any, Any]:
        """See :class:`Family`."""
        return new

    def copy(self, sources: Sequence[Array], onto: Sequence[Array | None]) -> list[Array]:
        """See :class:`Family`."""
        return [_copy(source, buffer) for source, buffer in zip(sources, onto, strict=True)]

    def in_host_memory(self, _tensor: Array) -> bool:
        """See :class:`Family`."""
        return True

    def to_host(self, tensors: Sequence[Array]) -> HostCopies:
        """See :class:`Family`."""
        return HostCopies([np.array(tensor, order="C") for tensor in tensors], lambda: None)

    def host_memory_like(self, tensor: Array) -> Array:
        """See :class:`Family`."""
        # Not zeros_like: that gives pages which are still to be made.
        memory: Array = np.empty(tensor.shape, tensor.dtype)
        memory.fill(0)
        return memory

    def state_of(self, value: object) -> HasState | None:
        """See :class:`Family`."""
        return state_of(value)

    def over(self, data: bytearray) -> Array:
        """See :class:`Family`."""
        return np.frombuffer(data, np.uint8)

    def outline(self, tree: Tree) -> bytes:
        """See :class:`Family`."""
        return arrays.outline(tree)

    def from_outline(self, data: bytes) -> tuple[Tree, list[Array]]:
        """See :class:`Family`."""
        return arrays.from_outline(data)

    def sendable(self, tensor: Array) -> Array:
        """See :class:`Family`."""
        return np.ascontiguousarray(tensor)

    def target(self, mine: Array | None, like: Array) -> Array:
        """See :class:`Family`."""
        if mine is not None and _alike(mine, like) and mine.flags.writeable and mine.flags.c_contiguous:
            return mine
        return np.empty(like.shape, like.dtype)

    def trained(self, value: object) -> Tree | None:
        """See :class:`Family`."""
        return trained_of(value)

    def put(self, tree: Tree, _live: Tree) -> Tree:
        """The tree: what a script holds on to are variables."""
        return tree

    def memory(self, tensor: Array) -> tuple[int, int]:
        """See :class:`Family`."""
        start = int(tensor.__array_interface__["data"][0])
        return start, start + tensor.nbytes

    def digests(self, tensors: Sequence[Array]) -> list[str]:
        """See :class:`Family`."""
        return [_digest(tensor) for tensor in tensors]

    def load(self, state: HasState, tree: Tree) -> None:
        """See :class:`Family`."""
        state.load_state_dict(tree)

    def write(self, tree: Tree, stream: PartStream) -> None:
        """See :class:`Family`."""
        arrays.write(tree, stream)

    def read(self, stream: IO[bytes], size: int) -> Tree:
        """See :class:`Family`."""
        return arrays.read(stream, size)

    def unfit(self, tensor: Array) -> str:
        """See :class:`Family`."""
        return "" if arrays.has_type(tensor) else f"an array of {tensor.dtype}"

    def check(self, tree: Tree) -> None:
        """See :class:`Family`."""
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
