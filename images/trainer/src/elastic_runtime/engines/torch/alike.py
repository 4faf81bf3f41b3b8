"""Whether all ranks have the same module already, so that ``DistributedDataParallel`` need not send it.

A newcomer makes its wrapper just after the state was sent to it, and the wrapper would send the parameters again, for
which everybody waits.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

_BITS = 52
"""A number of so many, and its negative, survive the way through a float64."""
_BLOCK = 1 << 20
"""Words that are added up at a time: their factors take 8 MiB."""


def alike(module: nn.Module, maximum: Callable[[Sequence[float]], list[float]]) -> bool:
    """Whether parameters and buffers are equal on all ranks, but for one chance in 2**52; a collective.

    Args:
        module: of any tensors; with others than plain ones it is not alike.
        maximum: of each number over all ranks, the same on all of them.
    """
    mine = float(_digest(module)) if _is_plain(module) else None
    greatest, least = maximum([mine, -mine] if mine is not None else [1.0, 1.0])
    return greatest == -least


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return itertools.chain(module.named_parameters(), module.named_buffers())


def _is_plain(module: nn.Module) -> bool:
    return all(
        type(tensor) in (Tensor, nn.Parameter) and tensor.layout == torch.strided and tensor.device.type != "meta"
        for _, tensor in _tensors(module)
    )


@torch.no_grad()
def _digest(module: nn.Module) -> int:
    factors: dict[torch.device, Tensor] = {}
    structure: list[tuple[str, str, tuple[int, ...]]] = []
    sums: list[Tensor] = []
    for name, tensor in _tensors(module):
        structure.append((name, str(tensor.dtype), tuple(tensor.shape)))
        if tensor.device not in factors:
            factors[tensor.device] = torch.arange(1, 2 * _BLOCK, 2, device=tensor.device)
        sums.extend(_sums(tensor, factors[tensor.device]))
    said = repr((structure, [each.item() for each in sums]))
    return int.from_bytes(hashlib.blake2b(said.encode(), digest_size=8).digest(), "big") >> (64 - _BITS)


def _sums(tensor: Tensor, factors: Tensor) -> Iterator[Tensor]:
    """Of a tensor's bits: each word times an odd factor of its place's, modulo 2**64."""
    flat = tensor.detach().reshape(-1).view(torch.uint8)
    if flat.storage_offset() % 8 or flat.data_ptr() % 8:
        flat = flat.clone()  # Words begin where words can.
    whole = flat.numel() // 8 * 8
    for words in (*torch.split(flat[:whole].view(torch.int64), _BLOCK), flat[whole:]):
        block, odd = words.long(), factors[: len(words)]
        # On GPUs there is no dot product of whole numbers; on CPUs it takes a quarter of the time.
        yield torch.dot(block, odd) if block.device.type == "cpu" else (block * odd).sum()
