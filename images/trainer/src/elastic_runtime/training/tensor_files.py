"""Trees of tensors as `safetensors`_ files, of every framework: no code can be in one, and it holds what it claims.

Eight bytes with the length of the header, the header as JSON, and the tensors' bytes one after another. A tensor is
named by its path in the tree, so that the library of that name loads a model's file as its state dict. The header's
``__metadata__`` has under ``tree`` what is around the tensors, as JSON of :mod:`~elastic_runtime.training.plain` in
which a tensor is ``{"$tensor": NUMBER}``, counted in the header's order; and under ``types``, by number, the
framework's name of each type that the format lacks: such a tensor is ``U8``, its bytes in a last dimension more.

Checkpoints are streams, and the library reads and writes whole files alone; so both are done here.

.. _safetensors: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO, Any, Protocol, TypeVar

from elastic_runtime.checkpoint.checkpoints import PartStream
from elastic_runtime.documents import parse_json
from elastic_runtime.errors import InvalidDocument, StoreUnavailable
from elastic_runtime.printable import printable
from elastic_runtime.training import plain

SUFFIX = ".safetensors"
Tree = Any
Tensor = Any
_LARGEST_HEADER = 100_000_000
"""Bytes, as in the library; some 150 for each tensor."""
_MOST_DIMENSIONS = 64
"""As in torch."""
MOST_ELEMENTS = 1 << 60
"""Of a tensor, sizes of 0 counted as 1: torch multiplies with 64 bits."""
_DEEPEST = 4 * plain.DEEPEST
"""Containers within each other where ranks send each other plain values that are encoded."""
_PIECE = 1 << 20
"""Bytes that are written or read at a time."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Layout:
    """Type and shape of a tensor in a file."""

    code: str
    """Type of its elements, one of :data:`SIZES`."""
    shape: tuple[int, ...]
    viewed: str = ""
    """Its framework's name of a type that the format lacks, whose bytes are the last dimension; else empty."""

    @property
    def size(self) -> int:
        """Size of the tensor's content, in bytes."""
        return math.prod(self.shape) * SIZES[self.code]


SIZES = {
    **{f"{letter}{bits}": bits // 8 for letter in "IU" for bits in (8, 16, 32, 64)},
    **{f"F{bits}": bits // 8 for bits in (16, 32, 64)},
    "BOOL": 1,
    "BF16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "C64": 8,
}
"""Bytes of an element, by the format's name of its type."""


class Codec(Protocol):
    """Tensors of a framework, as far as files have to do with them."""

    framework: str
    """The format's name of it: ``pt``, ``np``."""

    def is_tensor(self, value: object) -> bool:
        """Whether it is written with its content."""

    def unfit(self, tensor: Tensor) -> str:
        """What a tensor is that cannot be written, sent or copied, for an error; empty: it can."""

    def layout(self, tensor: Tensor) -> Layout:
        """How it is written. Raises :exc:`~.plain.NotPlain` where it cannot be."""

    def content(self, tensor: Tensor) -> memoryview:
        """Bytes of a tensor in host memory, in C order; of one that :meth:`empty` made, its own memory."""

    def empty(self, layout: Layout) -> Tensor:
        """A contiguous tensor in host memory. Raises any exception where there is none of that layout."""

    def like(self, layout: Layout) -> Tensor:
        """A tensor of that type and shape without memory. Raises as :meth:`empty`."""

    def encode(self, value: object) -> Any:
        """A plain value of the framework's own, tagged. Raises :exc:`~.plain.NotPlain`."""

    makers: Mapping[str, plain.Maker]
    """For the tags of :meth:`encode`."""


def outline(codec: Codec, tree: Tree, **notes: str) -> bytes:
    """The header of a file: everything but the tensors' content.

    Args:
        codec: whose tensors they are.
        tree: what to write.
        notes: texts that :func:`from_outline` returns.

    Raises:
        NotPlain: something in it is neither a tensor that can be written nor a plain value.
    """
    return _header(codec, tree, notes)[0]


def from_outline(codec: Codec, data: bytes) -> tuple[Tree, list[Tensor], dict[str, str]]:
    """The tree with tensors that have types and shapes but no memory, these tensors in order, and the notes.

    Raises:
        InvalidDocument: it is no such header.
    """

    def read() -> tuple[Tree, list[Tensor], dict[str, str]]:
        layouts, structure, notes = _parsed(codec, data)
        likes = [codec.like(each) for each in layouts]
        return _decoded(codec, structure, likes), likes, notes

    return _read_or_refused(read)


def check(codec: Codec, tree: Tree) -> None:
    """Check that :func:`read` will read what :func:`write` writes, as far as that can be told without the content.

    Raises:
        Exception: any; it will not.
    """
    header, tensors = _header(codec, tree, {}, plain.DEEPEST)
    for problem in filter(None, map(codec.unfit, tensors)):
        raise plain.NotPlain(problem)
    from_outline(codec, header)


def write(codec: Codec, tree: Tree, stream: PartStream) -> None:
    """Write a file. Tensors are in host memory, and not written to meanwhile. Raises as :func:`outline`."""
    header, tensors = _header(codec, tree, {})
    header += b" " * (-len(header) % 8)
    stream.write(len(header).to_bytes(8, "little") + header)
    for tensor in tensors:
        content = codec.content(tensor)
        for start in range(0, len(content), _PIECE):
            stream.write(content[start : start + _PIECE])


def read(codec: Codec, stream: IO[bytes], size: int) -> Tree:
    """What :func:`write` wrote; takes no more memory for tensors than the file has bytes.

    Args:
        codec: whose tensors they are.
        stream: at its start.
        size: bytes that it has.

    Raises:
        InvalidDocument: it is something else, torn, or another framework's.
        StoreUnavailable: the file cannot be read.
        MemoryError: there is too little for what it holds.
    """

    def read() -> Tree:
        length = int.from_bytes(stream.read(8), "little")
        if not 2 <= length <= min(size - 8, _LARGEST_HEADER):
            raise InvalidDocument("it has no header, or one of a senseless size")
        layouts, structure, _ = _parsed(codec, stream.read(length))
        if sum(each.size for each in layouts) != size - 8 - length:
            raise InvalidDocument("its tensors are not as long as it says")
        return _decoded(codec, structure, [_tensor(codec, stream, each) for each in layouts])

    return _read_or_refused(read)


def _read_or_refused(read: Callable[[], T]) -> T:
    try:
        return read()
    except (InvalidDocument, MemoryError):
        raise
    except OSError as error:
        raise StoreUnavailable(f"the file cannot be read: {printable(error)}") from error
    except Exception as error:  # what was made to mislead a parser may raise anything, and means no more than torn
        raise InvalidDocument(f"not a tree of tensors: {printable(error)}") from error


def _header(codec: Codec, tree: Tree, notes: Mapping[str, str], deepest: int = _DEEPEST) -> tuple[bytes, list[Tensor]]:
    tensors: list[Tensor] = []
    layouts: list[Layout] = []

    def other(value: object) -> Any:
        if not codec.is_tensor(value):
            return codec.encode(value)
        layouts.append(codec.layout(value))
        tensors.append(value)
        return {"$tensor": len(tensors) - 1}

    def as_text(value: Any) -> str:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))

    structure = plain.encode(tree, other, deepest=deepest)
    if len(names := _names(codec, tree)) != len(tensors):
        raise plain.NotPlain("a tensor in a set, a key or an attribute of a dict")
    types = {str(number): each.viewed for number, each in enumerate(layouts) if each.viewed}
    metadata = {"format": codec.framework, "tree": as_text(structure), "types": as_text(types), **notes}
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, layout in zip(names, layouts, strict=True):
        start, end = end, end + layout.size
        while not name or name in header:
            name += "#"  # noqa: PLW2901 - a name is made one that is not taken
        header[name] = {"dtype": layout.code, "shape": layout.shape, "data_offsets": [start, end]}
    data = as_text(header).encode()
    if len(data) > _LARGEST_HEADER - 8:
        raise plain.NotPlain(f"{len(data)} bytes of plain values and names")
    return data, tensors


def _names(codec: Codec, tree: Tree, prefix: str = "") -> list[str]:
    """Paths of all tensors, in the order in which they are encoded."""
    if codec.is_tensor(tree):
        return [prefix]
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list | tuple) else ()
    return [name for key, item in items for name in _names(codec, item, f"{prefix}.{key}" if prefix else f"{key}")]


def _parsed(codec: Codec, data: bytes) -> tuple[list[Layout], Any, dict[str, str]]:
    """Layouts of the tensors, the encoded tree, and notes."""
    header = parse_json(data, deepest=None)
    notes = header.pop("__metadata__")
    if (framework := notes.pop("format")) != codec.framework:
        raise InvalidDocument(f"it is another framework's: {printable(framework, 20)}")
    structure, types = parse_json(notes.pop("tree"), deepest=None), parse_json(notes.pop("types"))
    layouts: list[Layout] = []
    end = 0
    for number, entry in enumerate(header.values()):
        layout = Layout(entry["dtype"], tuple(entry["shape"]), types.get(str(number), ""))
        if len(layout.shape) > _MOST_DIMENSIONS or not all(type(size) is int and size >= 0 for size in layout.shape):
            raise InvalidDocument("a tensor of no such shape")
        if math.prod(size or 1 for size in layout.shape) >= MOST_ELEMENTS:
            raise InvalidDocument("a tensor of more elements than can be counted")
        start, end = end, end + layout.size
        if entry["data_offsets"] != [start, end]:
            raise InvalidDocument("a tensor that is not where the one before it ends, or not as long as its shape says")
        layouts.append(layout)
    return layouts, structure, notes


def _decoded(codec: Codec, structure: Any, tensors: list[Tensor]) -> Tree:
    taken = 0

    def take(number: Any) -> Tensor:
        nonlocal taken
        if type(number) is not int or number != taken or number == len(tensors):
            raise InvalidDocument("its tree does not hold each tensor once, in order")
        taken += 1
        return tensors[number]

    tree = plain.decode(structure, {**codec.makers, "$tensor": take})
    if taken != len(tensors):
        raise InvalidDocument("its tree does not hold each tensor")
    return tree


def _tensor(codec: Codec, stream: IO[bytes], layout: Layout) -> Tensor:
    try:
        tensor = codec.empty(layout)
    except RuntimeError as error:  # as torch tells it; a valid file is not passed over for an older one
        raise MemoryError(f"there is no memory for a tensor of {layout.size} bytes: {error}") from error
    content = codec.content(tensor)
    if len(content) != layout.size:
        raise InvalidDocument("a tensor that is not as long as its type says")
    while content:
        data = stream.read(min(len(content), _PIECE))
        if not data:
            raise InvalidDocument("it ends in the middle of a tensor")
        content[: len(data)] = data
        content = content[len(data) :]
    return tensor
