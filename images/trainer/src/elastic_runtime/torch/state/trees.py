"""State dicts as trees of tensors: copied in place, moved, and taken apart into structure and tensors."""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from elastic_runtime.errors import InvalidDocument

Tree = Any
"""Tensors, and values that ``torch.load(weights_only=True)`` takes, in dicts, lists and tuples."""
_IMMUTABLE = (int, float, str, type(None))


def map_tensors(function: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    """New containers around ``function`` of each tensor; other leaves are deep copies.

    Dicts keep their order and what ``Module.state_dict`` hangs onto them (``_metadata``).
    """
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, OrderedDict):
        ordered = OrderedDict((key, map_tensors(function, value)) for key, value in tree.items())
        vars(ordered).update(vars(tree))
        return ordered
    if type(tree) is dict:
        return {key: map_tensors(function, value) for key, value in tree.items()}
    if type(tree) is list:
        return [map_tensors(function, value) for value in tree]
    if type(tree) is tuple:
        return tuple(map_tensors(function, value) for value in tree)
    return tree if isinstance(tree, _IMMUTABLE) else deepcopy(tree)


def tensors_of(tree: Tree) -> list[Tensor]:
    """All tensors, in the order in which :func:`map_tensors` visits them."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, dict):
        return [tensor for value in tree.values() for tensor in tensors_of(value)]
    if isinstance(tree, list | tuple):
        return [tensor for value in tree for tensor in tensors_of(value)]
    return []


@torch.no_grad()
def copy_tree(tree: Tree, onto: Tree = None) -> Tree:
    """A copy that shares nothing with ``tree``, each tensor on its own device.

    Args:
        tree: what to copy.
        onto: an earlier copy whose memory to use where tensors fit; it is spent by this.
    """
    old = iter(tensors_of(onto))
    sources: list[Tensor] = []
    targets: list[Tensor] = []

    def copy(tensor: Tensor) -> Tensor:
        buffer = next(old, None)
        if buffer is None or not _alike(buffer, tensor):
            return tensor.detach().clone()
        sources.append(tensor.detach())
        targets.append(buffer)
        return buffer

    copied = map_tensors(copy, tree)
    if targets:
        # All at once, for each call lets go of the interpreter and waits for it again: where a checkpoint is being
        # written beside, that may take milliseconds each time.
        torch._foreach_copy_(targets, sources)
    return copied


def is_tree(value: object) -> bool:
    """Whether tensors, plain values and containers of them are all there is."""
    if isinstance(value, dict):
        return all(is_tree(key) and is_tree(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(is_tree(item) for item in value)
    return isinstance(value, Tensor) or type(value) in (bool, int, float, str, type(None))


def dump(tree: Tree) -> bytes:
    """Everything but the tensors' content, as bytes for :func:`load`."""
    buffer = io.BytesIO()
    torch.save(map_tensors(lambda tensor: torch.empty_like(tensor, device="meta"), tree), buffer)
    return buffer.getvalue()


def load(data: bytes) -> Tree:
    """What :func:`dump` wrote, with tensors of the device ``meta``. Never runs code that is in the bytes.

    Raises:
        InvalidDocument: it holds something else than tensors and plain values.
    """
    try:
        return torch.load(io.BytesIO(data), weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise InvalidDocument(f"not a tree of tensors and plain values: {error}") from error


def _alike(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and one.device == other.device
