"""Copies of states that are renewed at every commit, without asking the kernel for memory every time.

Memory that is new to a process is slow: the kernel has to find, clear and map each page when it is first written to,
which takes ten times as long as the copying itself. So a copy that is lent to a checkpoint comes back when that is
written, and two pieces of memory take turns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import torch

from elastic_runtime.torch.state.trees import Tree, copy_tree, map_tensors, tensors_of


@dataclass(frozen=True, slots=True)
class Loan:
    """A tree that nobody writes to until it is given back."""

    tree: Tree
    give_back: Callable[[], None]
    """To be called once, from any thread."""


@dataclass(slots=True)
class _Copy:
    tree: Tree
    loans: int = 0


class RenewedCopy:
    """The newest copy of one tree, each tensor on its own device."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest = _Copy(None)
        self._spare: _Copy | None = None

    @property
    def newest(self) -> Tree:
        """Not to be altered, nor kept beyond the next :meth:`renew`."""
        return self._newest.tree

    def renew(self, tree: Tree) -> None:
        """Copy ``tree``: over the copy before, or beside it while that one is lent."""
        with self._lock:
            before = self._newest
            onto: _Copy | None = before
            if before.loans:
                onto, self._spare = self._spare, None
        newest = _Copy(copy_tree(tree, onto.tree if onto else None))
        with self._lock:
            self._newest = newest
            if onto is not before and before.loans == 0:  # given back meanwhile
                self._spare = before

    def lend(self) -> Loan:
        """The newest copy."""
        copy = self._newest
        with self._lock:
            copy.loans += 1
        return Loan(copy.tree, lambda: self._give_back(copy))

    def _give_back(self, copy: _Copy) -> None:
        with self._lock:
            copy.loans -= 1
            if copy.loans == 0 and copy is not self._newest:
                self._spare = copy

    def reserve(self) -> None:
        """Have memory for the time in which the newest one will be lent; from any thread.

        Not for tensors of a GPU: those are copied to the host at once, and lent for no longer.
        """
        tree = self._newest.tree
        if all(tensor.device.type == "cpu" for tensor in tensors_of(tree)):
            spare = _Copy(map_tensors(_memory_like, tree))
            with self._lock:
                self._spare = spare


def host_memory(loan: Loan) -> Loan:
    """The tree in host memory. What is there already stays lent; else it is copied, and the loan given back at once."""
    if all(tensor.device.type == "cpu" for tensor in tensors_of(loan.tree)):
        return loan
    with torch.no_grad():
        tree = map_tensors(lambda tensor: tensor.detach().to("cpu", copy=True), loan.tree)
    loan.give_back()
    return Loan(tree, lambda: None)


def _memory_like(tensor: torch.Tensor) -> torch.Tensor:
    # Not zeros_like: that gives pages which are still to be made.
    return torch.empty_like(tensor).fill_(0)
