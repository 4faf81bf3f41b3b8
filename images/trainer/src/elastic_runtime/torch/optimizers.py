"""Optimizers get back exactly what they had.

``torch.optim.Optimizer.load_state_dict`` converts what it is given to the type of the parameter, where that is one of
floating-point numbers: float32 master weights and moments of bfloat16 parameters lose their lower bits, and the uint8
and int64 tensors of 8-bit optimizers their meaning. Texts become the representation of a generator. It also makes new
groups of parameters; ``hvd.DistributedOptimizer`` has those of the optimizer that it was given, which a scheduler may
have, too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


@torch.no_grad()
def load_optimizer(optimizer: torch.optim.Optimizer, tree: dict[str, Any]) -> None:
    """``load_state_dict``, and after it each value of its state as it is in ``tree``, but on the device it was put on.

    Groups of parameters stay the objects that they are.

    The optimizer may keep tensors of ``tree``.

    Raises:
        Exception: whatever its ``load_state_dict`` raises.
    """
    before = list(optimizer.param_groups)
    optimizer.load_state_dict(tree)
    groups = optimizer.param_groups
    for place, (group, loaded) in enumerate(zip(before, groups, strict=False)):
        if group is not loaded:
            group.clear()
            group.update(loaded)
            groups[place] = group
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, wanted in tree["state"].items():
        # What is kept under another key is kept as it is.
        if type(number) is int and 0 <= number < len(parameters) and parameters[number] in optimizer.state:
            parameter = parameters[number]
            optimizer.state[parameter] = _laid_out(
                _exact(optimizer.state[parameter], wanted, parameter.device), parameter
            )


def _laid_out(state: Any, parameter: Tensor) -> Any:
    """A parameter's state, tensors of its shape with its strides, as torch makes them.

    Files and messages have every tensor in C order, and fused steps go through the memory of both side by side: with
    ``channels_last`` they would take one element's moments for another's.
    """
    if isinstance(state, Tensor):
        if type(state) is not Tensor or state.shape != parameter.shape or state.stride() == parameter.stride():
            return state
        return torch.empty_like(parameter, dtype=state.dtype, requires_grad=False).copy_(state)
    return {key: _laid_out(value, parameter) for key, value in state.items()} if type(state) is dict else state


def separate_groups(optimizer: torch.optim.Optimizer) -> None:
    """Give each group tensors of its own: one learning rate for several is one tensor, until the first load."""
    seen: set[int] = set()
    for group in optimizer.param_groups:
        for name, value in group.items():
            if isinstance(value, Tensor):
                group[name] = value.clone() if id(value) in seen else value
                seen.add(id(value))


def _exact(loaded: Any, wanted: Any, device: torch.device) -> Any:
    """``wanted``, with the tensors of ``loaded`` where they were not converted, and its entries that are only there."""
    if isinstance(wanted, Tensor):
        if not isinstance(loaded, Tensor):
            return wanted.detach().to(device)
        return loaded if loaded.dtype == wanted.dtype else wanted.detach().to(loaded.device)
    if isinstance(wanted, dict):
        known = loaded if isinstance(loaded, dict) else {}
        return {**known, **{key: _exact(known.get(key), item, device) for key, item in wanted.items()}}
    if type(wanted) in (list, tuple):
        inner = loaded if type(loaded) is type(wanted) and len(loaded) == len(wanted) else [None] * len(wanted)
        return type(wanted)(_exact(one, item, device) for one, item in zip(inner, wanted, strict=True))
    return wanted
