"""What ranks send each other of their parts, by collectives and messages of torch.distributed, from host memory.

Every function is a collective: all ranks of the world call it, in the same order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor

from elastic_runtime.documents import from_json, to_json
from elastic_runtime.errors import InvalidDocument
from elastic_runtime.torch.sharded.boxes import Catalog, Leaf, Leaves, Piece, groups
from elastic_runtime.torch.sharded.versions import Holding
from elastic_runtime.world import World, current_world

Send = Callable[[Mapping[int, Sequence[Tensor]], Mapping[int, Sequence[Tensor]]], None]
"""The world's way to send tensors, by the rank that gets them, and to receive others, by the rank that sends them."""
MOST_AT_ONCE = 128 << 20
"""Bytes of whole tensors that are redistributed at a time, and of a message."""
_NOTHING = torch.empty(0, dtype=torch.uint8)
_LONGEST = 1 << 30
"""Bytes of a text."""


class WorldOfParts(World, Protocol):
    """A world whose engine says who leaves it."""

    @property
    def leaving(self) -> tuple[int, frozenset[int]]:
        """The number of the newest message about the next world, which grows, and the ranks that will not be in it."""

    def add_up(self, tensor: Tensor) -> None:
        """Overwrite a tensor in host memory, of one shape and type on all ranks, with their sum; a collective."""

    def exchange(self, out: Mapping[int, Sequence[Tensor]], into: Mapping[int, Sequence[Tensor]]) -> None:
        """Send tensors in host memory, by the rank that gets them, and receive others, by the rank that sends them.

        A collective of those that send to each other; it ends for who lives, where one of them does not.
        """

    def state_lost(self) -> None:
        """Parts of the state are in no rank, and there is no checkpoint: all ranks are ended, and start anew."""


def world_of_parts() -> WorldOfParts:
    """Return the world of this process, whose engine is torch."""
    return cast(WorldOfParts, current_world())


def gather(data: bytes) -> list[bytes]:
    """Return the data of every rank, indexed by rank. A collective. Raise InvalidDocument if it is too long."""
    world = world_of_parts()
    rank, size = world.rank, world.size
    lengths = torch.zeros(size, dtype=torch.int64)
    lengths[rank] = len(data)
    world.add_up(lengths)
    _check_length(int(lengths.sum()))
    texts = torch.zeros(int(lengths.sum()), dtype=torch.uint8)
    parts = torch.split(texts, lengths.tolist())
    if data:
        parts[rank].copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    if texts.numel():
        world.add_up(texts)
    return [part.numpy().tobytes() for part in parts]


def gather_values(mine: Any) -> list[Any]:
    """Every rank's JSON, by rank."""
    return [json.loads(text) for text in gather(json.dumps(mine).encode())]


def gather_catalogs(mine: Catalog) -> list[Catalog]:
    """Return the catalog of every rank, indexed by rank. A collective."""
    return [from_json(Catalog, text) for text in gather(to_json(mine).encode())]


def broadcast(data: bytes, source: int) -> bytes:
    """Return the data of the rank ``source`` on every rank. A collective; the other ranks' data is ignored."""
    return gather(data if dist.get_rank() == source else b"")[source]


def _check_length(length: int) -> None:
    if not 0 <= length <= _LONGEST:
        raise InvalidDocument(f"another rank has sent a text of {length} bytes")


def as_bytes(tensor: Tensor) -> Tensor:
    """The same memory, where it is contiguous."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def redistribute(
    send: Send,
    moved: Sequence[Sequence[Piece]],
    itemsizes: Sequence[int],
    part: Callable[[Piece], Tensor],
    receive: Callable[[Piece, Tensor], None],
) -> None:
    """Send pieces of tensors.

    Args:
        send: the world's.
        moved: for each tensor, the same on all ranks.
        itemsizes: for each tensor, bytes of an element.
        part: what is to be sent, of a piece whose source this rank is.
        receive: takes what has come, as bytes, of a piece whose target this rank is.
    """
    rank, ranks = dist.get_rank(), range(dist.get_world_size())
    sizes = [size * sum(each.box.volume for each in pieces) for pieces, size in zip(moved, itemsizes, strict=True)]
    for group in groups(sizes, MOST_AT_ONCE):
        here = [piece for leaf in group for piece in moved[leaf]]
        out = [[part(each) for each in here if (each.source, each.target) == (rank, to)] for to in ranks]
        coming = [each for source in ranks for each in here if (each.source, each.target) == (source, rank)]
        lengths = [each.box.volume * itemsizes[each.leaf] for each in coming]
        by_source = [0 for _ in ranks]
        for piece, length in zip(coming, lengths, strict=True):
            by_source[piece.source] += length
        received = torch.empty(sum(lengths), dtype=torch.uint8)
        into = torch.split(received, by_source)
        packed = [torch.cat([_NOTHING, *map(as_bytes, parts)]) for parts in out]
        into[rank].copy_(packed[rank])
        send(
            {to: [data] for to, data in enumerate(packed) if to != rank and data.numel()},
            {source: [data] for source, data in enumerate(into) if source != rank and data.numel()},
        )
        for piece, data in zip(coming, torch.split(received, lengths), strict=True):
            receive(piece, data)


class Copying:
    """Copies of parts, from each rank to the one that keeps it, commit after commit, in one world.

    Args:
        send: the world's.
        keepers: for each rank the one that keeps a copy of its part; itself where there is none.
        obtain: gives memory for such parts.
    """

    def __init__(self, send: Send, keepers: Sequence[int], obtain: Callable[[tuple[Leaf, ...]], Holding]) -> None:
        rank = dist.get_rank()
        self._keeper = keepers[rank] if keepers[rank] != rank else None
        self._kept = [each for each, keeper in enumerate(keepers) if keeper == rank and each != rank]
        self._send, self._obtain = send, obtain
        self._told: tuple[Leaf, ...] = ()
        self._known: dict[int, tuple[Leaf, ...]] = {}

    def copy(self, mine: Holding) -> list[Holding]:
        """Give mine, and get what this rank keeps: of each rank in turn."""
        text = b"" if mine.leaves == self._told else to_json(Leaves(mine.leaves)).encode()
        coming = {each: torch.zeros(1, dtype=torch.int64) for each in self._kept}
        self._pass([torch.tensor([len(text)])], {each: [size] for each, size in coming.items()})
        for size in coming.values():
            _check_length(int(size))
        texts = {each: torch.empty(int(size), dtype=torch.uint8) for each, size in coming.items()}
        self._pass(
            [torch.frombuffer(bytearray(text), dtype=torch.uint8)] if text else [],
            {each: [data] for each, data in texts.items() if data.numel()},
        )
        for each, data in texts.items():
            if data.numel():
                self._known[each] = from_json(Leaves, data.numpy().tobytes()).leaves
        self._told = mine.leaves
        copies = {each: self._obtain(self._known[each]) for each in self._kept}
        self._pass(_messages(mine), {each: _messages(copy) for each, copy in copies.items()})
        return list(copies.values())

    def _pass(self, out: Sequence[Tensor], into: dict[int, list[Tensor]]) -> None:
        self._send({} if self._keeper is None else {self._keeper: out}, into)


def _messages(holding: Holding) -> list[Tensor]:
    return [part for memory in holding.memory if memory.numel() for part in torch.split(as_bytes(memory), MOST_AT_ONCE)]
