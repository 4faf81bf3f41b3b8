"""torch's tensors: state dicts on any device, and in files."""

from __future__ import annotations

import json
import os
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Buffer, Parameter
from typing_extensions import override

from elastic_runtime.at_exit import AtExit
from elastic_runtime.errors import InvalidDocument
from elastic_runtime.torch.digests import digests
from elastic_runtime.torch.host_copies import HostCopier
from elastic_runtime.torch.optimizers import load_optimizer
from elastic_runtime.training import plain, tensor_files
from elastic_runtime.training.family import Family, HasState, HostCopies, Tree
from elastic_runtime.training.tensor_files import Layout
from elastic_runtime.training.trees import map_tensors, tensors_by_path, tensors_of
from elastic_runtime.world import current_world

_Like = tuple[Tensor, str]
"""A tensor of the device ``meta``, and the type of the device that it is on elsewhere."""
PROFILED = ".pt.trace.json.gz"
_CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.complex64: "C64",
}
_TYPES_BY_CODE = {code: kind for kind, code in _CODES.items()}
_TYPES_BY_NAME = {name: kind for name, kind in vars(torch).items() if isinstance(kind, torch.dtype) and name[0] != "q"}
"""Without quantized ones."""


class TorchFamily(Family):
    """torch's side of the training helpers. Trees may also hold sizes, devices and types of torch's."""

    framework = "pt"
    makers: Mapping[str, plain.Maker] = {
        "$size": torch.Size,
        "$device": torch.device,
        "$dtype": lambda name: _TYPES_BY_NAME[name],
    }

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
        reused = defaultdict[tuple[torch.device, torch.dtype], tuple[list[Tensor], list[Tensor]]](lambda: ([], []))
        for source, buffer in zip(sources, onto, strict=True):
            if buffer is not None and _alike(buffer, source):
                copies.append(buffer)
                buffers, theirs = reused[source.device, source.dtype]
                buffers.append(buffer)
                theirs.append(source)
            else:
                copies.append(source.detach().clone())
        self._copier.before_overwriting({device for device, _ in reused})
        for buffers, theirs in reused.values():
            # Many at once, for each call lets go of the interpreter and waits for it again: where a checkpoint is being
            # written beside, that may take milliseconds each time. All of a GPU's and of one type are few kernels; with
            # others between them, such as the steps of Adam, each would be one of its own.
            torch._foreach_copy_(buffers, theirs)
        self._copier.made({each.device for each in copies})
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
        devices = json.dumps([tensor.device.type for tensor in tensors_of(self, tree)])
        return tensor_files.outline(self, tree, devices=devices)

    @override
    def from_outline(self, data: bytes) -> tuple[Tree, list[_Like]]:
        tree, tensors, notes = tensor_files.from_outline(self, data)
        return tree, list(zip(tensors, json.loads(notes["devices"]), strict=True))

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
    def layout(self, tensor: Tensor) -> Layout:
        if problem := _unknown(tensor):
            raise plain.NotPlain(problem)
        if code := _CODES.get(tensor.dtype):
            return Layout(code, tuple(tensor.shape))
        return Layout("U8", (*tensor.shape, tensor.element_size()), _name(tensor.dtype))

    @override
    def content(self, tensor: Tensor) -> memoryview:
        data: memoryview = self.sendable(tensor).reshape(-1).view(torch.uint8).numpy().data
        return data

    @override
    def empty(self, layout: Layout) -> Tensor:
        return _made(layout, "cpu")

    @override
    def like(self, layout: Layout) -> Tensor:
        return _made(layout, "meta")

    @override
    def encode(self, value: object) -> Any:
        if isinstance(value, torch.Size):
            return {"$size": list(value)}
        if isinstance(value, torch.device):
            return {"$device": str(value)}
        return {"$dtype": _name(value)} if isinstance(value, torch.dtype) else plain.refuse(value)

    @override
    def unfit(self, tensor: Tensor) -> str:
        return _unknown(tensor) or ("a tensor without content, of the device meta" if tensor.is_meta else "")

    @override
    def profiling(self, folder: Path, asked: str) -> Profiling:
        return Profiling(folder, asked)


TORCH = TorchFamily()


def _unknown(tensor: Tensor) -> str:
    if type(tensor) in (Tensor, Parameter, Buffer) and tensor.layout == torch.strided and not tensor.is_quantized:
        return ""
    return f"a tensor that is a {type(tensor).__qualname__} of layout {tensor.layout} and type {tensor.dtype}"


def _name(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")


def _made(layout: Layout, device: str) -> Tensor:
    if not layout.viewed:
        return torch.empty(layout.shape, dtype=_TYPES_BY_CODE[layout.code], device=device)
    kind = _TYPES_BY_NAME[layout.viewed]
    if layout.shape[-1:] != (kind.itemsize,) or layout.code != "U8":
        raise InvalidDocument(f"a tensor of {layout.viewed} whose last dimension is not one element's bytes")
    return torch.empty(layout.shape[:-1], dtype=kind, device=device)


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
        """Start or stop the profiler at the commit of a global step."""
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
        AtExit(self.end).ask()

    def end(self) -> None:
        """Stop the profiler, and write the steps that it has seen. Does nothing if it never started."""
        profiler, self._profiler, self._over = self._profiler, None, True
        if profiler is None:
            return
        profiler.stop()
        world = current_world()
        rank = f"rank-{world.rank}-" if world.connected else ""
        hidden = self._folder / f".{os.getpid()}.json.gz"
        profiler.export_chrome_trace(str(hidden))
        hidden.rename(self._folder / f"{rank}{world.name or os.getpid()}{PROFILED}")
