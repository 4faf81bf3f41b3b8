"""Whether all ranks have the same module already, so that ``DistributedDataParallel`` need not send it.

A newcomer makes its wrapper just after the state was sent to it, and the wrapper would send the parameters again, for
which everybody waits.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from elastic_runtime.torch.digests import digests
from elastic_runtime.training.state.fingerprint import number_of


def alike(module: nn.Module, maximum: Callable[[Sequence[float]], list[float]]) -> bool:
    """Whether parameters and buffers are equal on all ranks, but for one chance in 2**52; a collective.

    Args:
        module: of any tensors; with others than plain ones it is not alike.
        maximum: of each number over all ranks, the same on all of them.
    """
    named = list(itertools.chain(module.named_parameters(), module.named_buffers()))
    mine: float | None = None
    if all(_is_plain(tensor) for _, tensor in named):
        found = digests([tensor for _, tensor in named])
        mine = float(number_of([(name, digest) for (name, _), digest in zip(named, found, strict=True)]))
    greatest, least = maximum([mine, -mine] if mine is not None else [1.0, 1.0])
    return greatest == -least


def _is_plain(tensor: Tensor) -> bool:
    is_known = type(tensor) in (Tensor, nn.Parameter)
    return is_known and tensor.layout == torch.strided and tensor.device.type != "meta"
