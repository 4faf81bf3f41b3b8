"""From what ranks have kept of a commit to a model and an optimizer that are sharded otherwise."""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch
from torch import Tensor

from elastic_runtime.documents import from_json, to_json
from elastic_runtime.errors import InvalidDocument
from elastic_runtime.torch.family import TORCH
from elastic_runtime.torch.sharded import exchange
from elastic_runtime.torch.sharded.boxes import Catalog, Key, Leaf, Leaves, Piece, pieces
from elastic_runtime.torch.sharded.trees import Outline, Targets, leaves_of, local, shared_buffers
from elastic_runtime.torch.sharded.versions import Version
from elastic_runtime.training import tensor_files
from elastic_runtime.training.state.fingerprint import number_of
from elastic_runtime.world import World


def reshard(
    send: exchange.Send,
    catalogs: Sequence[Catalog],
    key: Key,
    mine: Version | None,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None,
) -> None:
    """Give this rank's parts of a model and an optimizer what all ranks together have of a version; a collective.

    Args:
        send: the world's.
        catalogs: by rank, what each has.
        key: of the version.
        mine: that version here; None: this rank has nothing of it.
        model: sharded over the present world.
        optimizer: of its parameters.

    Raises:
        InvalidSettings: they do not fit.
    """
    first = next(rank for rank, catalog in enumerate(catalogs) if catalog.holdings(key))
    targets = Targets(model, optimizer, _outline(mine, first))
    leaves = leaves_of(targets.tensors)
    needs = [from_json(Leaves, text).leaves for text in exchange.gather(to_json(Leaves(leaves)).encode())]
    held = [catalog.holdings(key) for catalog in catalogs]
    if any(len(each) != len(leaves) for each in (*needs, *(holding for holdings in held for holding in holdings))):
        raise InvalidDocument("ranks have different numbers of tensors")
    moved = [_of_leaf(number, held, needs) for number in range(len(leaves))]
    with torch.no_grad():
        exchange.redistribute(
            send,
            moved,
            [tensor.element_size() for tensor in targets.tensors],
            lambda piece: _part(mine, piece),
            lambda piece, data: _receive(targets.tensors[piece.leaf], leaves[piece.leaf], piece, data),
        )
    targets.take()


@torch.no_grad()
def share_buffers(world: World, model: torch.nn.Module) -> None:
    """Give all ranks rank 0's buffers, as a sync does where every rank has the whole model; a collective."""
    buffers = list(shared_buffers(model).values())
    numbers = [float(number_of([("", digest)])) for digest in TORCH.digests(buffers)]
    found = world.maximum([*numbers, *(-number for number in numbers)])
    for buffer, greatest, least in zip(buffers, found[: len(numbers)], found[len(numbers) :], strict=True):
        if greatest != -least:
            sent = TORCH.sendable(buffer)
            world.broadcast([sent])
            buffer.copy_(sent)


def _outline(mine: Version | None, source: int) -> Outline:
    is_mine = mine is not None and torch.distributed.get_rank() == source
    data = b""
    if mine and is_mine:
        data = tensor_files.outline(TORCH, mine.outline.tree, placements=json.dumps(mine.outline.placements))
    tree, _, notes = tensor_files.from_outline(TORCH, exchange.broadcast(data, source))
    return Outline(tree, tuple(json.loads(notes["placements"])))


def _of_leaf(
    number: int, held: Sequence[tuple[tuple[Leaf, ...], ...]], needs: Sequence[tuple[Leaf, ...]]
) -> list[Piece]:
    holders = [[leaves[number].box for leaves in holdings] for holdings in held]
    return list(pieces(number, holders, [leaves[number].box for leaves in needs]))


def _part(mine: Version | None, piece: Piece) -> Tensor:
    assert mine is not None, "only who has it is a source"
    holding = mine.holdings[piece.holding]
    return holding.tensors[piece.leaf][piece.box.within(holding.leaves[piece.leaf].box)]


def _receive(tensor: Tensor, leaf: Leaf, piece: Piece, data: Tensor) -> None:
    if data.storage_offset() % tensor.element_size():
        data = data.clone()
    local(tensor)[piece.box.within(leaf.box)].copy_(data.view(tensor.dtype).reshape(piece.box.shape))
