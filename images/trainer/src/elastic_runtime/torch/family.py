"""torch's tensors: state dicts on any device, archives of ``torch.save``."""

from __future__ import annotations

import atexit
import io
import os
import pickle
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch import Tensor
from torch.nn import Buffer, Parameter
from torch.utils.serialization import config
from typing_extensions import override

from elastic_runtime.checkpoint.checkpoints import PartStream
from elastic_runtime.errors import InvalidDocument
from elastic_runtime.torch.archives import read_archive
from elastic_runtime.torch.digests import digests
from elastic_runtime.torch.host_copies import HostCopier
from elastic_runtime.torch.optimizers import load_optimizer
from elastic_runtime.training.family import Family, HasState, HostCopies, Tree
from elastic_runtime.training.trees import map_tensors, tensors_by_path, tensors_of
from elastic_runtime.world import current_world

_Like = tuple[Tensor, str]
"""A tensor of the device ``meta``, and the type of the device that it is on elsewhere."""
PROFILED = ".pt.trace.json.gz"


class TorchFamily(Family):
    """Implements :class:`~elastic_runtime.training.family.Family`. Trees are what ``weights_only=True`` allows."""

    suffix = ".pt"

    def __init__(self, copier: HostCopier | None = None) -> None:
        self._copier = copier or HostCopier()

    @override
    def is_tensor(self, value: object) -> bool:
        return isinstance(value, Tensor)

    def rebuilt(self, old: dict[Any, Any], new: dict[Any, Any]) -> dict[Any, Any]:
        """With what ``Module.state_dict`` hangs onto its dicts (``_metadata``)."""
        if not isinstance(old, OrderedDict):
            return new
        ordered = OrderedDict(new)
        vars(ordered).update(vars(old))
        return ordered

    @torch.no_grad()
    @override
    def copy(self, sources: Sequence[Tensor], onto: Sequence[Tensor | None]) -> list[Tensor]:
        copies: list[Tensor] = []
        reused: list[Tensor] = []
        onto_them: list[Tensor] = []
        for source, buffer in zip(sources, onto, strict=True):
            if buffer is not None and _alike(buffer, source):
                copies.append(buffer)
                reused.append(buffer)
                onto_them.append(source)
            else:
                copies.append(source.detach().clone())
        if reused:
            self._copier.before_overwriting(reused)
            # All at once, for each call lets go of the interpreter and waits for it again: where a checkpoint is being
            # written beside, that may take milliseconds each time.
            torch._foreach_copy_(reused, onto_them)
        self._copier.made(copies)
        return copies

    @override
    def in_host_memory(self, tensor: Tensor) -> bool:
        return tensor.device.type == "cpu"

    @torch.no_grad()
    @override
    def to_host(self, tensors: Sequence[Tensor]) -> HostCopies:
        return self._copier.begin(tensors)

    @override
    def host_memory_like(self, tensor: Tensor) -> Tensor:
        # Not zeros_like: that gives pages which are still to be made.
        return self._copier.host_memory_like(tensor).fill_(0)

    def state_of(self, value: object) -> HasState | None:
        """The object itself, if it has a ``state_dict``."""
        return value if isinstance(value, HasState) else None

    @override
    def over(self, data: bytearray) -> Tensor:
        return torch.frombuffer(data, dtype=torch.uint8)

    @override
    def outline(self, tree: Tree) -> bytes:
        return dump({"tree": tree, "devices": [tensor.device.type for tensor in tensors_of(self, tree)]})

    @override
    def from_outline(self, data: bytes) -> tuple[Tree, list[_Like]]:
        received = load(data)
        return received["tree"], list(zip(tensors_of(self, received["tree"]), received["devices"], strict=True))

    @override
    def sendable(self, tensor: Tensor) -> Tensor:
        return tensor.detach().resolve_conj().resolve_neg().contiguous()

    @override
    def target(self, mine: Tensor | None, like: _Like) -> Tensor:
        wanted, device = like
        if (
            mine is not None
            and mine.shape == wanted.shape
            and mine.dtype == wanted.dtype
            and mine.device.type == device
            and mine.is_contiguous()
            and not (mine.is_conj() or mine.is_neg())
        ):
            return mine.detach()
        return torch.empty(wanted.shape, dtype=wanted.dtype, device=device)

    @override
    def trained(self, value: object) -> Tree | None:
        if isinstance(value, torch.nn.Module):
            return dict(value.named_parameters())
        if isinstance(value, torch.optim.Optimizer):
            return value.state_dict()
        return None

    @torch.no_grad()
    def put(self, tree: Tree, live: Tree) -> Tree:
        """Leaves of autograd's graph stay the objects that they are: an optimizer may have them."""
        held = {path: leaf for path, leaf in tensors_by_path(self, live).items() if leaf.requires_grad and leaf.is_leaf}
        if not held:
            return tree
        placed: list[Tensor] = []
        for path, tensor in tensors_by_path(self, tree).items():
            mine = held.get(path)
            if mine is not None and mine.shape == tensor.shape and mine.dtype == tensor.dtype:
                placed.append(mine.copy_(tensor))
            else:
                placed.append(tensor)
        remaining = iter(placed)
        return map_tensors(self, lambda _: next(remaining), tree)

    @override
    def memory(self, tensor: Tensor) -> tuple[int, int]:
        start = tensor.data_ptr()
        return start, start + tensor.numel() * tensor.element_size()

    @override
    def digests(self, tensors: Sequence[Tensor]) -> list[str]:
        return digests(tensors)

    @override
    def load(self, state: HasState, tree: Tree) -> None:
        if isinstance(state, torch.optim.Optimizer):
            load_optimizer(state, tree)
        else:
            state.load_state_dict(tree)

    @override
    def write(self, tree: Tree, stream: PartStream) -> None:
        # Without the CRCs that torch puts into its archives and never reads, a quarter of the work of writing: the
        # manifest has a SHA-256 of the whole. The setting is this thread's alone.
        with config.patch({"save.compute_crc32": False}):  # type: ignore[attr-defined]
            # torch asks for a whole IO[bytes] and uses write and flush.
            torch.save(tree, cast(IO[bytes], stream))

    @override
    def read(self, stream: IO[bytes], size: int) -> Tree:
        """Read a value. Checkpoints do not contain what :meth:`unfit` refuses."""
        tree = read_archive(stream, size)
        self._check_tensors(tree)
        return tree

    @override
    def unfit(self, tensor: Tensor) -> str:
        if type(tensor) not in (Tensor, Parameter, Buffer) or tensor.layout != torch.strided or tensor.is_quantized:
            kind = f"{type(tensor).__qualname__} of layout {tensor.layout} and type {tensor.dtype}"
            return f"a tensor that is a {kind}"
        return "a tensor without content, of the device meta" if tensor.is_meta else ""

    @override
    def check(self, tree: Tree) -> None:
        self._check_tensors(tree)
        data = dump(tree)
        read_archive(io.BytesIO(data), len(data))

    def _check_tensors(self, tree: Tree) -> None:
        for kind in filter(None, map(self.unfit, tensors_of(self, tree))):
            raise InvalidDocument(kind)

    @override
    def profiling(self, folder: Path, asked: str) -> Profiling:
        return Profiling(folder, asked)


TORCH = TorchFamily()


def dump(tree: Tree) -> bytes:
    """Everything but the tensors' content, as bytes for :func:`load`."""
    buffer = io.BytesIO()
    torch.save(map_tensors(TORCH, lambda tensor: torch.empty_like(tensor, device="meta"), tree), buffer)
    return buffer.getvalue()


def load(data: bytes) -> Tree:
    """What :func:`dump` wrote, with tensors of the device ``meta``. Never runs code that is in the bytes.

    Raises:
        InvalidDocument: it holds something else than tensors and plain values.
    """
    try:
        return torch.load(io.BytesIO(data), weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise InvalidDocument(f"not a tree of tensors and plain values: {error}") from error


def _alike(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and one.device == other.device


# torch's profiler, for the steps that a run asks for.


class Profiling:
    """Sees global steps ``first`` to ``first + count`` from commit to commit, and writes one file."""

    def __init__(self, folder: Path, asked: str) -> None:
        first, _, count = asked.partition(":")
        self._first, self._end, self._folder = int(first), int(first) + int(count), folder
        self._profiler: Any = None
        self._over = False

    def committed(self, step: int) -> None:
        """This rank has committed that step."""
        if self._over:
            return
        if self._profiler is None and self._first <= step < self._end:
            self._start()
        elif self._profiler is not None and step >= self._end:
            self.end()

    def _start(self) -> None:
        import torch
        from torch import profiler

        kinds = {profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.CUDA}
        self._profiler = profiler.profile(
            activities=kinds if torch.cuda.is_available() else {profiler.ProfilerActivity.CPU}
        )
        self._profiler.start()
        atexit.register(self.end)

    def end(self) -> None:
        """Write what there is."""
        profiler, self._profiler, self._over = self._profiler, None, True
        if profiler is None:
            return
        profiler.stop()
        world = current_world()
        rank = f"rank-{world.rank}-" if world.connected else ""
        hidden = self._folder / f".{os.getpid()}.json.gz"
        profiler.export_chrome_trace(str(hidden))
        hidden.rename(self._folder / f"{rank}{world.name or os.getpid()}{PROFILED}")
