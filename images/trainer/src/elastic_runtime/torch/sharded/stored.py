"""The parts of a checkpoint that hold what each rank had: written by each, read by ranks of any number.

``sharded-00001-of-00003.safetensors`` is the state as its writer had it: ``tree`` is what ``state_dict`` gives, with
this rank's parts in the place of tensors; ``layout`` has for each of them, in that order, the shape of the whole, the
offset of the part, and how it is placed (:class:`~.trees.Outline`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from elastic_runtime.checkpoint.checkpoints import PartWriter, StoredCheckpoint
from elastic_runtime.checkpoint.manifest import LARGEST, Part
from elastic_runtime.errors import InvalidDocument
from elastic_runtime.torch.family import TORCH
from elastic_runtime.torch.sharded import is_of_parts
from elastic_runtime.torch.sharded.boxes import Box, Leaf, whole
from elastic_runtime.torch.sharded.trees import AS_ITS_PARAMETER, Outline, local
from elastic_runtime.torch.sharded.versions import Version
from elastic_runtime.training import tensor_files
from elastic_runtime.training.checkpointing.parts import ATTRIBUTES, read_tree
from elastic_runtime.training.family import Tree
from elastic_runtime.training.tensor_files import MOST_ELEMENTS, SUFFIX
from elastic_runtime.training.trees import map_tensors, tensors_of

KEPT = ("model", "optimizer")
"""Names under which states that every rank has whole keep the same."""


def part_writer(version: Version, rank: int, size: int) -> dict[str, PartWriter]:
    """Return a writer of this rank's part of a version."""
    outline, own = version.outline, version.own
    parts = iter(own.tensors)
    tree = map_tensors(TORCH, lambda _: next(parts), outline.tree)
    layout = [
        (leaf.shape, leaf.box.offset, placements)
        for leaf, placements in zip(own.leaves, outline.placements, strict=True)
    ]
    content = {"tree": tree, "layout": layout}
    return {f"sharded-{rank:05d}-of-{size:05d}{SUFFIX}": partial(tensor_files.write, TORCH, content)}


class StoredPart:
    """What one rank had.

    Raises:
        InvalidDocument: it is not what :func:`part_writer` writes.
    """

    def __init__(self, tree: Tree, layout: Sequence[Any]) -> None:
        self.tensors: list[Tensor] = tensors_of(TORCH, tree)
        if len(layout) != len(self.tensors):
            raise InvalidDocument("its layout does not have as many tensors as it holds")
        self.leaves = [_leaf(tensor, *_checked(each)) for tensor, each in zip(self.tensors, layout, strict=True)]
        sizes = (leaf.volume * each.element_size() for leaf, each in zip(self.leaves, self.tensors, strict=True))
        self.claimed = sum(sizes)
        """Bytes of the whole tensors, as its layout says."""
        if self.claimed > LARGEST:
            raise InvalidDocument(f"its layout claims tensors of {self.claimed} bytes")
        shapes = iter(self.leaves)
        wholes = map_tensors(
            TORCH, lambda tensor: torch.empty(next(shapes).shape, dtype=tensor.dtype, device="meta"), tree
        )
        self.outline = Outline(wholes, tuple(each[2] for each in layout))

    @classmethod
    def read(cls, stored: StoredCheckpoint, part: Part) -> StoredPart:
        """One part. Raises InvalidDocument, and StoreUnavailable."""
        with stored.open_part(part.name) as stream:
            found = read_tree(TORCH, stream, part)
        if not isinstance(found, dict) or not isinstance(found.get("layout"), list) or "tree" not in found:
            raise InvalidDocument(f"its part {part.name} has no tree and layout")
        return cls(found["tree"], found["layout"])


def _checked(entry: Any) -> tuple[tuple[int, ...], tuple[int, ...], str]:
    if type(entry) is not tuple or len(entry) != 3 or type(entry[2]) is not str:
        raise InvalidDocument("its layout has an entry that is none")
    for numbers in entry[:2]:
        if type(numbers) is not tuple or not all(type(each) is int and 0 <= each < 2**63 for each in numbers):
            raise InvalidDocument("its layout has a shape or an offset that is none")
    if math.prod(size or 1 for size in entry[0]) >= MOST_ELEMENTS:
        raise InvalidDocument("its layout has a tensor of more elements than can be counted")
    return entry


def _leaf(tensor: Tensor, shape: tuple[int, ...], offset: tuple[int, ...], _: str) -> Leaf:
    ends = [start + length for start, length in zip(offset, tensor.shape, strict=False)]
    if not len(shape) == len(offset) == tensor.ndim or any(end > most for end, most in zip(ends, shape, strict=True)):
        raise InvalidDocument("its layout has a part outside of its tensor")
    return Leaf(shape, Box(offset, tuple(tensor.shape)), str(tensor.dtype).removeprefix("torch."))


def read_tensors(
    stored: StoredCheckpoint, start: float, make: Callable[[Outline], tuple[Sequence[Tensor], Sequence[Box]]]
) -> None:
    """Fill tensors with what a checkpoint has of them, from as few of its parts as it takes.

    Args:
        stored: with parts of ranks, or with a model and an optimizer that were written by one rank.
        start: between 0 and 1, where among the parts to look first.
        make: given what there is, makes the tensors, and says which box of the whole each of them is.

    Raises:
        InvalidDocument: parts are missing, torn, altered or unreadable.
        StoreUnavailable: the store does not answer.
    """
    filling: _Filling | None = None
    for found in _parts(stored, start):
        filling = filling or _Filling(found.outline, *_made(stored, found, make))
        if filling.take(found):
            return
    raise InvalidDocument("it has no state of a model" if filling is None else "parts of its tensors are missing")


def _made(
    stored: StoredCheckpoint, found: StoredPart, make: Callable[[Outline], tuple[Sequence[Tensor], Sequence[Box]]]
) -> tuple[Sequence[Tensor], Sequence[Box]]:
    """Call ``make``, unless its tensors would take more memory than the checkpoint has bytes."""
    held = sum(part.size for part in stored.manifest.parts)
    if found.claimed > held:
        raise InvalidDocument(f"a part of it claims tensors of {found.claimed} bytes, and all parts have {held}")
    try:
        return make(found.outline)
    except (MemoryError, RuntimeError):
        # The manifest may claim sizes as well. If it does not, the machine is too small, and older checkpoints are
        # not to be taken instead.
        for part in stored.manifest.parts:
            stored.open_part(part.name).close()
        raise


def _parts(stored: StoredCheckpoint, start: float) -> Iterator[StoredPart]:
    names = {part.name: part for part in stored.manifest.parts}
    sharded = sorted(filter(is_of_parts, names))
    if not sharded:
        tree = {kept: _whole(stored, names[kept + SUFFIX]) for kept in KEPT if kept + SUFFIX in names}
        layout = [(tuple(each.shape), (0,) * each.ndim, AS_ITS_PARAMETER) for each in tensors_of(TORCH, tree)]
        yield StoredPart(tree, layout)
        return
    first = int(start * len(sharded))
    for name in sharded[first:] + sharded[:first]:
        yield StoredPart.read(stored, names[name])


def _whole(stored: StoredCheckpoint, part: Part) -> Tree:
    with stored.open_part(part.name) as stream:
        return read_tree(TORCH, stream, part)


class _Filling:
    """Tensors, and what is still missing of them."""

    def __init__(self, outline: Outline, tensors: Sequence[Tensor], boxes: Sequence[Box]) -> None:
        if [each.shape for each in tensors] != [each.shape for each in tensors_of(TORCH, outline.tree)]:
            raise InvalidDocument("it holds other tensors than those of a model and an optimizer, in that order")
        self._outline, self._tensors, self._boxes = outline, tensors, boxes
        self._missing = [box.volume for box in boxes]
        self._seen: list[set[Box]] = [set() for _ in boxes]

    @torch.no_grad()
    def take(self, found: StoredPart) -> bool:
        """Returns whether all is there."""
        like = [(leaf.shape, leaf.dtype) for leaf in found.leaves]
        shapes = tensors_of(TORCH, self._outline.tree)
        if like != [(tuple(each.shape), str(each.dtype).removeprefix("torch.")) for each in shapes]:
            raise InvalidDocument("its parts are not of one state")
        for number, (leaf, box) in enumerate(zip(found.leaves, self._boxes, strict=True)):
            common = leaf.box.common(box)
            if common is None or leaf.box in self._seen[number]:
                continue
            self._seen[number].add(leaf.box)
            local(self._tensors[number])[common.within(box)].copy_(found.tensors[number][common.within(leaf.box)])
            self._missing[number] -= common.volume
        return not any(self._missing)


def read_whole(stored: StoredCheckpoint, others: dict[str, Any]) -> dict[str, Any]:
    """The others, and of what was written in parts, states with whole tensors. Raises as :func:`read_tensors`."""
    if not any(is_of_parts(part.name) for part in stored.manifest.parts):
        return others
    trees: list[Tree] = []

    def make(outline: Outline) -> tuple[Sequence[Tensor], Sequence[Box]]:
        trees.append(map_tensors(TORCH, lambda like: torch.empty(like.shape, dtype=like.dtype), outline.tree))
        tensors = tensors_of(TORCH, trees[0])
        return tensors, [whole(tensor.shape) for tensor in tensors]

    read_tensors(stored, 0, make)
    return {**others, **{name: state for name, state in trees[0].items() if name in KEPT}}


def is_other(name: str) -> bool:
    """Whether a part holds something else than the model and the optimizer."""
    return name == ATTRIBUTES or not (is_of_parts(name) or name in {kept + SUFFIX for kept in KEPT})
