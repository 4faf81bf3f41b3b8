"""Gradients of what a state keeps: they are no part of the state, and must not outlive the step that they belong to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor


def forget_gradients(kept: Iterable[object]) -> None:
    """Have no parameter of these modules and optimizers keep a gradient; others of them are left as they are.

    A step that a lost rank breaks leaves each survivor its own gradients, and new ranks have none. If the training
    function does not begin a step with ``zero_grad()``, the repeated step would add to them. ``zero_grad()`` itself
    is not used: that of ``hvd.DistributedOptimizer`` fails while exchanges are under way.
    """
    for parameter in parameters_of(kept):
        parameter.grad = None


def parameters_of(kept: Iterable[object]) -> Iterator[Tensor]:
    """Return the parameters of the modules and optimizers among these; one that several have, several times."""
    for value in kept:
        if isinstance(value, torch.nn.Module):
            yield from value.parameters()
        elif isinstance(value, torch.optim.Optimizer):
            yield from (each for group in value.param_groups for each in group["params"])
