"""Whether all ranks have the same module, told by what they say of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import nn

from elastic_runtime.engines.torch.parallel import alike


def among(*modules: nn.Module) -> list[bool]:
    """What each rank of a world makes of it, one module a rank."""
    said: list[Sequence[float]] = []

    def says(numbers: Sequence[float]) -> list[float]:
        said.append(numbers)
        return list(numbers)

    for module in modules:
        alike(module, says)
    greatest = [max(each) for each in zip(*said, strict=True)]
    return [alike(module, lambda _: greatest) for module in modules]


def net(seed: int = 0, width: int = 7) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(width, 3), nn.BatchNorm1d(3), nn.Linear(3, 1).double())


def _a_bit(module: nn.Module) -> None:
    bits = module[0].bias.data.view(torch.int32)
    bits[-1] ^= 1


def _two_rows(module: nn.Module) -> None:
    weight = module[0].weight.data
    weight[[0, 1]] = weight[[1, 0]]


def _a_buffer(module: nn.Module) -> None:
    module[1].num_batches_tracked += 1


def _a_name(module: nn.Module) -> None:
    module.add_module("more", nn.ReLU())
    module.register_buffer("extra", torch.zeros(0))


def _a_type(module: nn.Module) -> None:
    module.to(torch.bfloat16)


def test_equal_ones_are() -> None:
    assert among(net(), net(), net()) == [True] * 3


def test_so_are_ones_without_anything() -> None:
    assert among(nn.ReLU(), nn.ReLU()) == [True] * 2


@pytest.mark.parametrize("change", [_a_bit, _two_rows, _a_buffer, _a_name, _a_type])
def test_one_that_differs_is_not(change: Callable[[nn.Module], None]) -> None:
    other = net()
    change(other)
    assert among(net(), other, net()) == [False] * 3


def test_others_seeds_and_shapes_are_not() -> None:
    assert among(net(0), net(1)) == [False] * 2
    assert among(net(), net(width=8)) == [False] * 2


def test_tensors_that_are_no_plain_ones_are_not() -> None:
    on_meta = nn.Linear(2, 2, device="meta")
    assert among(on_meta, on_meta) == [False] * 2
    assert among(net(), on_meta) == [False] * 2


def test_where_a_tensor_begins_in_memory_does_not_matter() -> None:
    module, other = nn.Linear(4, 2), nn.Linear(4, 2)
    other.weight.data = torch.empty(9)[1:].view(2, 4)
    other.load_state_dict(module.state_dict())
    assert other.weight.data_ptr() % 8
    assert among(module, other) == [True] * 2
