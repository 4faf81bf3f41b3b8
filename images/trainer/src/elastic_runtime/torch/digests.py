"""Digests of tensors' bits, to compare tensors on different ranks without sending them.

Words of eight bytes are multiplied by odd factors, one for each place in a block, and added up modulo 2**64. That runs
at the speed of memory on CPUs and GPUs. It protects against faults, not against attackers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

_BLOCK = 1 << 20
"""Words that are added up at a time: their factors take 8 MiB."""


@torch.no_grad()
def digests(tensors: Sequence[Tensor]) -> list[str]:
    """Type, shape and a digest of the bits of each tensor; the same on every device, and for all strides.

    Args:
        tensors: strided, on any device but ``meta``.
    """
    factors: dict[torch.device, Tensor] = {}
    sums: list[Tensor] = []
    counts: list[int] = []
    for tensor in tensors:
        if tensor.device not in factors:
            factors[tensor.device] = torch.arange(1, 2 * _BLOCK, 2, device=tensor.device)
        found = list(_sums(tensor, factors[tensor.device]))
        sums += found
        counts.append(len(found))
    numbers = iter(_on_host(sums))
    return [_text(tensor, [next(numbers) for _ in range(count)]) for tensor, count in zip(tensors, counts, strict=True)]


def _text(tensor: Tensor, sums: Sequence[int]) -> str:
    digest = hashlib.blake2b(repr(sums).encode(), digest_size=8).hexdigest()
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)} {digest}"


def _on_host(sums: Sequence[Tensor]) -> list[int]:
    """One transfer for each device, since a transfer waits for all that was asked of the device before."""
    found = [0] * len(sums)
    for device in {each.device for each in sums}:
        places = [place for place, each in enumerate(sums) if each.device == device]
        for place, number in zip(places, torch.stack([sums[place] for place in places]).tolist(), strict=True):
            found[place] = number
    return found


def _sums(tensor: Tensor, factors: Tensor) -> Iterator[Tensor]:
    flat = tensor.detach().resolve_conj().resolve_neg().reshape(-1).view(torch.uint8)
    if flat.storage_offset() % 8 or flat.data_ptr() % 8:
        flat = flat.clone()  # Words begin where words can.
    whole = flat.numel() // 8 * 8
    for words in (*torch.split(flat[:whole].view(torch.int64), _BLOCK), flat[whole:]):
        block, odd = words.long(), factors[: len(words)]
        # On GPUs there is no dot product of whole numbers; on CPUs it takes a quarter of the time.
        yield torch.dot(block, odd) if block.device.type == "cpu" else (block * odd).sum()
