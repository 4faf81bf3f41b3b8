"""The last commits of this rank's part, and of the parts of others that it keeps a copy of, in host memory.

Two versions are there while training goes on: the newest, and the one before, to which all can go back where a rank is
lost while the newest is being made. The memory of versions that are over is used again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from elastic_runtime.errors import InvalidDocument
from elastic_runtime.torch.family import TORCH
from elastic_runtime.torch.sharded.boxes import Kept, Key, Leaf
from elastic_runtime.torch.sharded.trees import Outline, leaves_of, local, outline
from elastic_runtime.training.family import Tree
from elastic_runtime.training.trees import tensors_of


class Holding:
    """Parts of all tensors of a tree: for each type one piece of memory, of which each part is a view."""

    def __init__(self, leaves: tuple[Leaf, ...]) -> None:
        self.leaves = leaves
        self.loans = 0
        """Of those who read it beside the training."""
        sizes: dict[str, int] = {}
        for leaf in leaves:
            sizes[leaf.dtype] = sizes.get(leaf.dtype, 0) + leaf.box.volume
        pinned = torch.cuda.is_available()
        self.memory = [
            torch.empty(size, dtype=dtype_of(name), pin_memory=pinned) for name, size in sorted(sizes.items())
        ]
        rest = dict(zip(sorted(sizes), self.memory, strict=True))
        self.tensors: list[Tensor] = []
        for leaf in leaves:
            part, rest[leaf.dtype] = rest[leaf.dtype].tensor_split([leaf.box.volume])
            self.tensors.append(part.reshape(leaf.box.shape))

    @torch.no_grad()
    def fill(self, parts: Sequence[Tensor]) -> None:
        """Copy the parts into this version."""
        if parts:
            torch._foreach_copy_(self.tensors, list(parts))


def dtype_of(name: str) -> torch.dtype:
    """A type by the name that :class:`Leaf` has. Raises InvalidDocument."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise InvalidDocument(f"{name[:40]!r} is not the name of a torch.dtype")
    return found


@dataclass(slots=True)
class Version:
    """One commit, as far as it is kept here."""

    commit: int
    layout: int
    outline: Outline
    values: Mapping[str, Any]
    """What else the state has, the same on every rank."""
    own: Holding
    copies: list[Holding] = field(default_factory=list)
    """Of other ranks' parts."""

    @property
    def key(self) -> Key:
        """By which versions are ordered."""
        return self.commit, self.layout

    @property
    def holdings(self) -> tuple[Holding, ...]:
        """Parts of this version in this process: the rank's own, then its copies of other ranks' parts."""
        return self.own, *self.copies


class Versions:
    """The last commits in this process."""

    def __init__(self) -> None:
        self._versions: list[Version] = []
        self._spent: list[Holding] = []

    @property
    def newest(self) -> Version:
        """Return the newest version. There must be one."""
        return self._versions[-1]

    def __iter__(self) -> Iterator[Version]:
        return iter(self._versions)

    def kept(self) -> tuple[Kept, ...]:
        """What there is, for :class:`Catalog`."""
        return tuple(
            Kept(each.commit, each.layout, tuple(holding.leaves for holding in each.holdings))
            for each in self._versions
        )

    def of(self, key: Key) -> Version | None:
        """Return the version with this key."""
        return next((each for each in self._versions if each.key == key), None)

    def keep_only(self, *keys: Key) -> None:
        """No other is gone back to any more."""
        over = [each for each in self._versions if each.key not in keys]
        self._versions = [each for each in self._versions if each.key in keys]
        self._spent = [each for each in self._spent if each.loans]
        self._spent += [holding for version in over for holding in version.holdings]

    def add(self, commit: int, layout: int, tree: Tree, values: Mapping[str, Any]) -> Version:
        """Copy what this rank has of a tree."""
        tensors = tensors_of(TORCH, tree)
        own = self.obtain(leaves_of(tensors))
        own.fill([local(tensor) for tensor in tensors])
        version = Version(commit, layout, outline(tree), values, own)
        self._versions.append(version)
        return version

    def obtain(self, leaves: tuple[Leaf, ...]) -> Holding:
        """Memory for such parts, with whatever is in it."""
        for holding in self._spent:
            if holding.leaves == leaves and not holding.loans:
                self._spent.remove(holding)
                return holding
        return Holding(leaves)
