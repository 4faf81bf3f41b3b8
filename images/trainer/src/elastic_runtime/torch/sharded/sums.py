"""Sums over the bits of tensors that add up over their parts: the same however a tensor is sharded.

Each element's bits, as a whole number, are multiplied by an odd factor of its place in the whole tensor, and added up
modulo 2**64. Ranks compare these sums before and after a redistribution, without sending the tensors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from elastic_runtime.errors import StatesDiffer
from elastic_runtime.torch.family import TORCH
from elastic_runtime.torch.sharded import exchange
from elastic_runtime.torch.sharded.boxes import Box, Catalog, Key, Leaf
from elastic_runtime.torch.sharded.versions import Version, dtype_of
from elastic_runtime.training.state.fingerprint import name_of
from elastic_runtime.training.trees import tensors_by_path

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}
"""By bytes of an element."""
_BLOCK = 1 << 20
"""Numbers that are added up at a time."""
_MODULUS = 1 << 64
Sums = Mapping[tuple[str, bool], int]
"""By the name of a tensor, and whether its words were added up (see :func:`_by_words`)."""


def total_sums(version: Version | None, catalogs: Sequence[Catalog], key: Key, *, differ: bool) -> Sums:
    """The sums of the tensors of a version, of which each rank has parts; a collective.

    Args:
        version: what this rank has of it; None: nothing.
        catalogs: by rank, what each has.
        key: of the version.
        differ: whether ranks may have different content in the same part; there is no sum of such a tensor then.

    Raises:
        StatesDiffer: ranks do; on all ranks.
    """
    mine: list[tuple[str, bool, int, int, int]] = []
    if version is not None:
        names = [name_of(path) for path in tensors_by_path(TORCH, version.outline.tree)]
        for number, holding in _chosen(catalogs, key, dist.get_rank()):
            part = version.holdings[holding]
            leaf = part.leaves[number]
            mine.append((names[number], _by_words(leaf), number, holding, part_sum(part.tensors[number], leaf)))
    totals: dict[tuple[str, bool], int] = {}
    seen: dict[tuple[int, Box], tuple[int, int]] = {}
    different: dict[tuple[str, bool], tuple[int, int]] = {}
    for rank, said in enumerate(exchange.gather_values(mine)):
        for name, by_words, number, holding, found in said:
            box = catalogs[rank].holdings(key)[holding][number].box
            first, known = seen.setdefault((number, box), (rank, found))
            if first == rank:
                totals[name, by_words] = (totals.get((name, by_words), 0) + found) % _MODULUS
            elif known != found:
                different.setdefault((name, by_words), (first, rank))
    if different and not differ:
        (name, _), (first, rank) = min(different.items())
        raise StatesDiffer(
            f"{name} is not the same on the ranks {first} and {rank}, which both have this part of it. "
            "Have build make the same on every rank, as with torch.manual_seed before it, and train it alike"
        )
    return {each: total for each, total in totals.items() if each not in different}


def _chosen(catalogs: Sequence[Catalog], key: Key, rank: int) -> list[tuple[int, int]]:
    """Tensors, by number, and holdings of this rank whose parts it adds up: its own, and copies of lost ones."""
    seen: set[tuple[int, Box]] = set()
    chosen = []
    holdings = [(each, catalog.holdings(key)) for each, catalog in enumerate(catalogs)]
    own = [(each, 0, found[0]) for each, found in holdings if found]
    copies = [(each, place + 1, copy) for each, found in holdings for place, copy in enumerate(found[1:])]
    for each, holding, leaves in (*own, *copies):
        for number, leaf in enumerate(leaves):
            if leaf.box.volume and (holding == 0 or (number, leaf.box) not in seen):
                seen.add((number, leaf.box))
                if each == rank:
                    chosen.append((number, holding))
    return chosen


def check_sums(before: Sums, after: Sums) -> None:
    """Raises StatesDiffer for a tensor that is not what it was; the same on all ranks."""
    # Where a tensor was added up in another way, as it was sharded in another dimension, its sums say nothing.
    known = {name for name, _ in after}
    different = sorted(
        name
        for (name, by_words), found in before.items()
        if after.get((name, by_words), None if name not in known else found) != found
    )
    if different:
        raise StatesDiffer(
            f"{different[0]} is not what it was before it was redistributed over the ranks of this world. "
            "Have build make the same model and optimizer in each world"
        )


@torch.no_grad()
def part_sum(tensor: Tensor, leaf: Leaf) -> int:
    """The sum of one part, in host memory.

    Args:
        tensor: the part.
        leaf: which part that is.
    """
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    if flat.storage_offset() % 8 or flat.data_ptr() % 8:
        flat = flat.clone()  # Words begin where words can.
    if _by_words(leaf):
        first = leaf.box.offset[0] * (math.prod(leaf.shape[1:]) * tensor.element_size() // 8) if leaf.shape else 0
        return _of_range(flat.view(torch.int64), first)
    width = 2 if tensor.element_size() == 16 else 1
    words, found = flat.view(_WORDS[tensor.element_size()]), 0
    for start in range(0, tensor.numel(), _BLOCK):
        places = _places(leaf, start, min(start + _BLOCK, tensor.numel()))
        if width == 2:
            places = torch.stack([2 * places, 2 * places + 1], dim=1).reshape(-1)
        found += int(torch.dot(words[width * start :][: len(places)].long(), 2 * places + 1))
    return found % _MODULUS


def _by_words(leaf: Leaf) -> bool:
    """Whether the part, as all others of a tensor sharded in its first dimension, consists of whole words of 8 bytes.

    These are added up at the speed of memory; else each element is.
    """
    size = torch.empty(0, dtype=dtype_of(leaf.dtype)).element_size()
    is_range = leaf.box.shape[1:] == leaf.shape[1:]
    return is_range and len(leaf.shape) > 0 and math.prod(leaf.shape[1:]) * size % 8 == 0


def _of_range(words: Tensor, first: int) -> int:
    factors, found = torch.arange(1, 2 * min(_BLOCK, len(words)), 2), 0
    for number, block in enumerate(torch.split(words, _BLOCK)):
        before = first + number * _BLOCK
        found += int(torch.dot(block, factors[: len(block)])) + 2 * before * int(block.sum())
    return found % _MODULUS


def _places(leaf: Leaf, start: int, end: int) -> Tensor:
    """Places in the whole tensor of elements of the part, by their number in it."""
    rest = torch.arange(start, end)
    places, stride = torch.zeros_like(rest), 1
    for whole, offset, length in zip(
        reversed(leaf.shape), reversed(leaf.box.offset), reversed(leaf.box.shape), strict=True
    ):
        places += (rest % length + offset) * stride
        rest = rest // length
        stride *= whole
    return places
