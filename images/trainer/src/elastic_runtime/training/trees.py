"""State dicts as trees of tensors: mapped, listed, copied in place."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from typing import Any

from elastic_runtime.training.family import Family, Tree
from elastic_runtime.training.plain import DEEPEST

Path = tuple[Any, ...]
"""Keys of dicts and indices of lists and tuples that lead from a tree to a leaf."""
_IMMUTABLE = (int, float, str, type(None))


def map_tensors(family: Family, function: Callable[[Any], Any], tree: Tree) -> Tree:
    """New containers around ``function`` of each tensor; other leaves are deep copies. Dicts keep their order."""
    is_tensor = family.is_tensor

    def mapped(value: Tree) -> Tree:
        if is_tensor(value):
            return function(value)
        if isinstance(value, dict):
            new = {key: mapped(item) for key, item in value.items()}
            return new if type(value) is dict else family.rebuilt(value, new)
        if type(value) is list:
            return [mapped(item) for item in value]
        if type(value) is tuple:
            return tuple(mapped(item) for item in value)
        return value if isinstance(value, _IMMUTABLE) else deepcopy(value)

    return mapped(tree)


def tensors_of(family: Family, tree: Tree) -> list[Any]:
    """All tensors, in the order in which :func:`map_tensors` visits them."""
    found: list[Any] = []
    is_tensor = family.is_tensor

    def gather(value: Tree) -> None:
        if is_tensor(value):
            found.append(value)
        elif isinstance(value, dict):
            for item in value.values():
                gather(item)
        elif type(value) in (list, tuple):
            for item in value:
                gather(item)

    gather(tree)
    return found


def leaves_of(family: Family, tree: Tree, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """All leaves with their paths, tensors in the order of :func:`tensors_of`. An empty container is a leaf."""
    if isinstance(tree, dict) and tree:
        for key, item in tree.items():
            yield from leaves_of(family, item, (*path, key))
    elif type(tree) in (list, tuple) and tree:
        for index, item in enumerate(tree):
            yield from leaves_of(family, item, (*path, index))
    else:
        yield path, tree


def tensors_by_path(family: Family, tree: Tree) -> dict[Path, Any]:
    """All tensors, in the order of :func:`tensors_of`."""
    return {path: leaf for path, leaf in leaves_of(family, tree) if family.is_tensor(leaf)}


def copy_tree(family: Family, tree: Tree) -> Tree:
    """A copy that shares nothing with ``tree``, each tensor on its own device."""
    return copied(family, tree, ())[0]


def copied(family: Family, tree: Tree, onto: Sequence[Any]) -> tuple[Tree, list[Any]]:
    """Return a copy that shares nothing with ``tree``, each tensor on its own device, and the tensors of the copy.

    Args:
        family: whose tensors they are.
        tree: what to copy.
        onto: the tensors of an earlier copy, whose memory to use where they fit; they are spent by this.
    """
    sources = tensors_of(family, tree)
    copies = family.copy(sources, [*onto[: len(sources)], *[None] * (len(sources) - len(onto))])
    remaining = iter(copies)
    return map_tensors(family, lambda _: next(remaining), tree), copies


def outline(family: Family, tree: Tree) -> bytes:
    """Return everything of a tree but the content of its tensors, with containers of the types that a copy has.

    Raises:
        NotPlain: the tree holds something that cannot be sent.
    """
    return family.outline(map_tensors(family, lambda tensor: tensor, tree))


def is_tree(family: Family, value: Any, depth: int = 0) -> bool:
    """Whether tensors, plain values and containers of them are all there is; others would come back as their bases.

    Not where containers are nested deeper than can be written.
    """
    if type(value) in (dict, OrderedDict):
        value = [each for pair in value.items() for each in pair]
    if type(value) in (list, tuple):
        return depth < DEEPEST and all(is_tree(family, item, depth + 1) for item in value)
    return family.is_tensor(value) or type(value) in (bool, int, float, str, type(None))
