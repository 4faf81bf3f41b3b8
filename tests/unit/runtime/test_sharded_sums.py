"""Sums over the bits of tensors are the same however these are sharded, and differ for any other bits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.errors import StatesDiffer
from elastic_runtime.torch.sharded.boxes import Leaf, whole
from elastic_runtime.torch.sharded.sums import _by_words, check_sums, part_sum
from tests.unit.runtime.test_sharded_boxes import split

TYPES = (torch.float32, torch.bfloat16, torch.float64, torch.complex128, torch.complex64, torch.bool, torch.uint8)


def sums(tensor: torch.Tensor, ranks: int, dim: int) -> tuple[bool, int]:
    """Over all parts of a tensor, sharded over so many ranks."""
    shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    leaves = [Leaf(shape, box, dtype) for box in split(shape, ranks, dim) if box.volume]
    found = [part_sum(tensor[leaf.box.within(whole(shape))], leaf) for leaf in leaves]
    return all(map(_by_words, leaves)), sum(found) % 2**64


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple),
    st.sampled_from(TYPES),
    st.integers(1, 4),
    st.data(),
)
def test_sums_of_parts_add_up_to_that_of_the_whole(
    shape: tuple[int, ...], dtype: torch.dtype, ranks: int, data: st.DataObject
) -> None:
    tensor = (torch.randn(shape, dtype=torch.float64) * 100).to(dtype)
    dim = data.draw(st.integers(0, len(shape) - 1))
    (one_way, one), (other_way, other) = sums(tensor, 1, 0), sums(tensor, ranks, dim)
    assert one_way != other_way or one == other


def test_parts_may_begin_anywhere_in_memory() -> None:
    memory = torch.arange(25.0)
    leaf = Leaf((6, 4), whole((6, 4)), "float32")
    assert part_sum(memory[1:].reshape(6, 4), leaf) == part_sum(memory[1:].reshape(6, 4).clone(), leaf)


def test_every_bit_and_every_place_counts() -> None:
    tensor = torch.arange(24.0).reshape(6, 4)
    flipped, swapped = tensor.clone(), tensor[[1, 0, 2, 3, 4, 5]]
    flipped.view(torch.int32)[3, 2] ^= 1
    assert len({sums(each, 3, 0)[1] for each in (tensor, flipped, swapped)}) == 3


def test_a_tensor_that_is_another_is_named() -> None:
    before = {("model.weight", True): 5, ("optimizer.state.0.step", False): 7}
    check_sums(before, {**before, ("more", True): 1})
    check_sums(before, {("model.weight", False): 6, ("optimizer.state.0.step", False): 7})  # Sharded otherwise.
    for after in ({**before, ("model.weight", True): 6}, {("optimizer.state.0.step", False): 7}):
        with pytest.raises(StatesDiffer, match=r"^model\.weight is not what it was"):
            check_sums(before, after)
