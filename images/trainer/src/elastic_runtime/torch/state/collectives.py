"""What the ranks of a world tell each other, without pickle.

Every function here is a collective: all ranks of the world must call it, in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from elastic_runtime.torch.state.trees import Tree, dump, load, map_tensors, tensors_of
from elastic_runtime.world import World


@dataclass(frozen=True, slots=True)
class Signals:
    """What a rank has heard, and after :func:`agree`, what any rank has."""

    updated: float = 0.0
    """Time stamp of the newest notification that hosts have changed, 0 for none."""
    seen: float = 0.0
    """Time stamp up to which notifications were acted upon."""
    handover: bool = False
    """Whether a durable checkpoint is wanted now."""
    stand: bool = False
    """Whether to wait at this commit, for it is the last one that can be made durable."""


def agree(world: World, mine: Signals) -> Signals:
    """The maximum over all ranks, the same everywhere: one collective of four numbers."""
    if world.size == 1:
        return mine
    numbers = [mine.updated, mine.seen, float(mine.handover), float(mine.stand)]
    updated, seen, handover, stand = world.maximum(numbers)
    return Signals(updated, seen, bool(handover), bool(stand))


def broadcast_tree(world: World, tree: Tree) -> Tree:
    """Rank 0's tree on every rank.

    On rank 0 it is the argument itself, unchanged. Elsewhere tensors of the argument that fit are overwritten in place
    and returned, so that a model's ``state_dict`` arrives without a second copy.
    """
    if world.size == 1:
        return tree
    if world.rank == 0:
        tensors = tensors_of(tree)
        _broadcast_bytes(world, dump({"tree": tree, "devices": [tensor.device.type for tensor in tensors]}))
        world.broadcast([tensor.detach().contiguous() for tensor in tensors])
        return tree
    received = load(_broadcast_bytes(world, b""))
    mine = tensors_of(tree)
    wanted = tensors_of(received["tree"])
    targets = [
        _target(mine[index] if index < len(mine) else None, like, device)
        for index, (like, device) in enumerate(zip(wanted, received["devices"], strict=True))
    ]
    world.broadcast(targets)
    remaining = iter(targets)
    return map_tensors(lambda _: next(remaining), received["tree"])


def _target(mine: Tensor | None, like: Tensor, device: str) -> Tensor:
    fits = (
        mine is not None
        and mine.shape == like.shape
        and mine.dtype == like.dtype
        and mine.device.type == device
        and mine.is_contiguous()
    )
    if mine is not None and fits:
        return mine.detach()
    return torch.empty(like.shape, dtype=like.dtype, device=device)


def _broadcast_bytes(world: World, data: bytes) -> bytes:
    size = torch.tensor([len(data)])
    world.broadcast([size])
    content = torch.frombuffer(bytearray(data or int(size)), dtype=torch.uint8)
    world.broadcast([content])
    return bytes(content.numpy())
