"""Copies that are lent to checkpoints: never written to while lent, and their memory used again."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.torch.family import TORCH
from elastic_runtime.training.state.copies import Loan, RenewedCopy, host_memory


def address(copy: RenewedCopy) -> int:
    tensor: torch.Tensor = copy.newest["w"]
    return tensor.data_ptr()


def renewed(copy: RenewedCopy, value: int) -> int:
    copy.renew({"w": torch.full((5,), value)})
    assert copy.newest["w"].tolist() == [value] * 5
    return address(copy)


def test_without_a_loan_one_piece_of_memory_is_enough() -> None:
    copy = RenewedCopy(TORCH)
    assert len({renewed(copy, value) for value in range(4)}) == 1


def test_with_one_loan_at_a_time_two_pieces_take_turns() -> None:
    copy = RenewedCopy(TORCH)
    renewed(copy, 0)
    addresses = set()
    for value in range(1, 9):
        loan = copy.lend()
        addresses |= {renewed(copy, value), renewed(copy, value + 100)}
        loan.give_back()
    assert len(addresses) == 2


def test_what_is_reserved_is_what_the_first_loan_needs() -> None:
    copy = RenewedCopy(TORCH)
    first = renewed(copy, 0)
    copy.reserve()
    assert copy._spare is not None
    reserved = copy._spare.tree["w"].data_ptr()
    assert renewed(copy, 1) == first
    copy.lend()
    assert renewed(copy, 2) == reserved


@given(st.lists(st.sampled_from(["renew", "lend", "give back first", "give back last", "reserve"]), max_size=40))
def test_what_is_lent_stays_as_it_is_whatever_comes_in_whatever_order(doings: list[str]) -> None:
    copy, loans, value = RenewedCopy(TORCH), list[tuple[Loan, int]](), 0
    renewed(copy, value)
    for doing in doings:
        if doing == "renew":
            value += 1
            renewed(copy, value)
        elif doing == "lend":
            loans.append((copy.lend(), value))
        elif doing == "reserve":
            copy.reserve()
        elif loans:
            loans.pop(0 if doing == "give back first" else -1)[0].give_back()
        assert copy.newest["w"].tolist() == [value] * 5
        for loan, lent in loans:
            assert loan.tree["w"].tolist() == [lent] * 5


def test_a_tree_in_host_memory_is_not_copied() -> None:
    copy = RenewedCopy(TORCH)
    renewed(copy, 1)
    loan = copy.lend()
    assert host_memory(TORCH, loan) is loan


def test_a_tree_that_is_elsewhere_is_copied() -> None:
    tree = {"w": torch.ones(2), "gpu": torch.empty(3, device="meta")}  # stands for a GPU, as far as devices go
    with pytest.raises(NotImplementedError, match="meta tensor"):  # there is nothing in it to be copied
        host_memory(TORCH, Loan(tree, lambda: None))
