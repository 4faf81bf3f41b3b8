"""What a framework must offer for its tensors to be kept: copied at commits, sent between ranks, written and read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from elastic_runtime.training.tensor_files import Codec

Tree = Any
"""Tensors, and plain values, in dicts, lists and tuples."""


@runtime_checkable
class HasState(Protocol):
    """Modules, optimizers, learning-rate schedulers, gradient scalers, samplers and the like."""

    def state_dict(self) -> Any:
        """Return the state as a tree."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Take the state over that :meth:`state_dict` returned."""


class Profiling(Protocol):
    """Interface of a framework's profiler in a rank."""

    def committed(self, step: int) -> None:
        """Start or stop profiling at the commit of this global step."""


@dataclass(frozen=True, slots=True)
class HostCopies:
    """Copies in host memory, in the order of their sources."""

    tensors: list[Any]
    wait: Callable[[], None]
    """Comes back when they are complete; from any thread."""


class Family(Codec, Protocol):
    """A framework, as far as a state has to do with it. Tensors are its own, wherever they lie."""

    def rebuilt(self, old: dict[Any, Any], new: dict[Any, Any]) -> dict[Any, Any]:
        """A dict with the items of ``new``, of the kind of ``old``, one of a tree."""

    def copy(self, sources: Sequence[Any], onto: Sequence[Any]) -> list[Any]:
        """Copies, each on its own device.

        Args:
            sources: tensors.
            onto: for each of them an earlier copy whose memory to use if it fits, or None; spent by this.
        """

    def in_host_memory(self, tensor: Any) -> bool:
        """Return whether the tensor is in host memory, and not on an accelerator."""

    def to_host(self, tensors: Sequence[Any]) -> HostCopies:
        """Begin copies of the tensors to host memory, and return without waiting for them.

        From now on, :meth:`copy` may be given these tensors to overwrite. It waits for the copies first.
        """

    def host_memory_like(self, tensor: Any) -> Any:
        """Return host memory for a copy of the tensor, with all its pages already allocated."""

    def state_of(self, value: object) -> HasState | None:
        """Return what reads and loads the state of an object of a script. None: it has no state."""

    def over(self, data: bytearray) -> Any:
        """Return a tensor of bytes that shares this memory."""

    def outline(self, tree: Tree) -> bytes:
        """Return everything of a tree but its tensors' content; see :func:`elastic_runtime.training.trees.outline`."""

    def from_outline(self, data: bytes) -> tuple[Tree, list[Any]]:
        """The tree with something in the place of each tensor, and in the same order what each is like.

        Raises:
            InvalidDocument: it is no such outline. Nothing that is in it is executed.
        """

    def sendable(self, tensor: Any) -> Any:
        """Return the tensor as :meth:`World.broadcast <elastic_runtime.world.World.broadcast>` needs it: contiguous."""

    def target(self, mine: Any, like: Any) -> Any:
        """A tensor to receive into: ``mine`` (or None), if it fits what :meth:`from_outline` says, else a new one."""

    def trained(self, value: object) -> Tree | None:
        """What every rank has alike at each commit: a model's parameters, or an optimizer's state; None: neither.

        The buffers of a model are left out: running statistics are each rank's own until the next sync.
        """

    def put(self, tree: Tree, live: Tree) -> Tree:
        """``tree``, with tensors of ``live`` overwritten and in the place of theirs where a script holds on to them."""

    def memory(self, tensor: Any) -> tuple[int, int]:
        """Addresses of the start and the end of a contiguous tensor, in bytes."""

    def digests(self, tensors: Sequence[Any]) -> list[str]:
        """Type, shape and a digest of the bits of each tensor, the same for all strides and devices."""

    def load(self, state: HasState, tree: Tree) -> None:
        """Give an object a tree, which it may keep; with every tensor's type as it is in the tree.

        Raises:
            Exception: any; the object does not take it.
        """

    def profiling(self, folder: Path, asked: str) -> Profiling | None:
        """Of the steps that are asked for (:data:`elastic_runtime.run.observe.PROFILE`); None: it has none."""
