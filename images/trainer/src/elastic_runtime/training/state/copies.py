"""Copies of states that are renewed at every commit, without asking the kernel for memory every time.

Memory that is new to a process is slow: the kernel has to find, clear and map each page when it is first written to,
which takes ten times as long as the copying itself. So a copy that is lent to a checkpoint comes back when that is
written, and two pieces of memory take turns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from elastic_runtime.training.family import Family, Tree
from elastic_runtime.training.trees import copied, map_tensors, tensors_of


@dataclass(frozen=True, slots=True)
class Loan:
    """A tree that nobody writes to until it is given back."""

    tree: Tree
    give_back: Callable[[], None]
    """To be called once, from any thread."""
    wait: Callable[[], None] = lambda: None
    """To be called before the tree is read, from any thread: comes back when it is complete."""


@dataclass(slots=True)
class _Copy:
    tree: Tree
    tensors: Sequence[Any]
    """Of the tree."""
    loans: int = 0


class RenewedCopy:
    """The newest copy of one tree, each tensor on its own device."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self._lock = threading.RLock()  # A signal's handler may come here, too.
        self._newest = _Copy(None, ())
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
        newest = _Copy(*copied(self._family, tree, onto.tensors if onto else ()))
        with self._lock:
            self._newest = newest
            if onto is not before and before.loans == 0:  # given back meanwhile
                self._spare = before

    def lend(self) -> Loan:
        """Lend the newest copy. Its memory is not reused before the loan is given back."""
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

        A tree on a GPU is lent for no longer than it takes to ask for its copy. The family keeps the memory for that.
        """
        tree, family = self._newest.tree, self._family
        memory = map_tensors(family, family.host_memory_like, tree)
        spare = _Copy(memory, tensors_of(family, memory))
        if _in_host_memory(family, tree):
            with self._lock:
                self._spare = spare


def host_memory(family: Family, loan: Loan) -> Loan:
    """The tree in host memory. What is there already stays lent; else a copy is begun, and the loan given back."""
    if _in_host_memory(family, loan.tree):
        return loan
    begun = family.to_host(tensors_of(family, loan.tree))
    copies = iter(begun.tensors)
    tree = map_tensors(family, lambda _: next(copies), loan.tree)
    loan.give_back()
    return Loan(tree, lambda: None, begun.wait)


def _in_host_memory(family: Family, tree: Tree) -> bool:
    return all(map(family.in_host_memory, tensors_of(family, tree)))
