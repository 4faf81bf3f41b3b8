"""What the ranks of a world tell each other, without pickle.

Every function here is a collective: all ranks of the world must call it, in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass

import horovod.torch as hvd
import torch
from torch import Tensor

from elastic_runtime.torch.state.trees import Tree, dump, load, map_tensors, tensors_of


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


def agree(mine: Signals) -> Signals:
    """The maximum over all ranks, the same everywhere: one collective of four numbers."""
    if hvd.size() == 1:
        return mine
    numbers = [mine.updated, mine.seen, float(mine.handover), float(mine.stand)]
    local = torch.tensor(numbers, dtype=torch.float64)
    updated, seen, handover, stand = hvd.allreduce(local, op=hvd.Max, name="elastic_runtime.signals").tolist()
    return Signals(updated, seen, bool(handover), bool(stand))


def broadcast_tree(tree: Tree) -> Tree:
    """Rank 0's tree on every rank.

    On rank 0 it is the argument itself, unchanged. Elsewhere tensors of the argument that fit are overwritten in place
    and returned, so that a model's ``state_dict`` arrives without a second copy.
    """
    if hvd.size() == 1:
        return tree
    if hvd.rank() == 0:
        tensors = tensors_of(tree)
        _broadcast_bytes(dump({"tree": tree, "devices": [tensor.device.type for tensor in tensors]}))
        _broadcast_tensors([tensor.detach().contiguous() for tensor in tensors])
        return tree
    received = load(_broadcast_bytes(b""))
    mine = tensors_of(tree)
    wanted = tensors_of(received["tree"])
    targets = [
        _target(mine[index] if index < len(mine) else None, like, device)
        for index, (like, device) in enumerate(zip(wanted, received["devices"], strict=True))
    ]
    _broadcast_tensors(targets)
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


def _broadcast_bytes(data: bytes) -> bytes:
    size = hvd.broadcast(torch.tensor([len(data)]), root_rank=0, name="elastic_runtime.tree.size")
    content = torch.empty(int(size), dtype=torch.uint8)
    if data:
        content = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    hvd.broadcast_(content, root_rank=0, name="elastic_runtime.tree.structure")
    return bytes(content.numpy())


def _broadcast_tensors(tensors: list[Tensor]) -> None:
    # As bytes: Horovod has no broadcast for some types (bfloat16, complex).
    handles = [
        hvd.broadcast_async_(tensor.reshape(-1).view(torch.uint8), root_rank=0, name=f"elastic_runtime.tree.{index}")
        for index, tensor in enumerate(tensors)
        if tensor.numel()
    ]
    for handle in handles:
        hvd.synchronize(handle)
