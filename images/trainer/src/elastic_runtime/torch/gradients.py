"""Gradients of what a state keeps: they are no part of the state, and must not outlive the step that they belong to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import NamedTuple
from weakref import ReferenceType, WeakKeyDictionary, WeakSet, ref

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from elastic_runtime.errors import InvalidSettings


def forget_gradients(kept: Iterable[object]) -> None:
    """Have no parameter of these modules and optimizers keep a gradient; others of them are left as they are.

    A step that a lost rank breaks leaves each survivor its own gradients, and new ranks have none. If the training
    function does not begin a step with ``zero_grad()``, the repeated step would add to them. ``zero_grad()`` itself
    is not used: that of ``hvd.DistributedOptimizer`` fails while exchanges are under way.

    Gradient scalers forget how far the step was, or they would refuse to begin it again.
    """
    for value in kept:
        if isinstance(value, torch.amp.GradScaler):
            value._per_optimizer_states.clear()
        if isinstance(value, torch.nn.Module | Optimizer):
            for parameter in value.parameters() if isinstance(value, torch.nn.Module) else _parameters(value):
                parameter.grad = None


def _parameters(optimizer: Optimizer) -> Iterator[Tensor]:
    return (each for group in optimizer.param_groups for each in group["params"])


class _Seen(NamedTuple):
    """A gradient as it was at a commit. It keeps nothing alive: the model may be that of another world."""

    parameter: ReferenceType[Tensor]
    gradient: ReferenceType[Tensor]
    version: int

    @property
    def has_changed(self) -> bool:
        """Whether the parameter has another one now, or more was added."""
        now = self._now()
        return now is None or now._version != self.version

    @property
    def has_grown(self) -> bool:
        """Whether more was added to it."""
        now = self._now()
        return now is not None and now._version > self.version

    def _now(self) -> Tensor | None:
        """Return it, if it is the parameter's still."""
        parameter = self.parameter()
        now = None if parameter is None else parameter.grad
        return now if now is self.gradient() else None


class GradientsAtCommits:
    """Finds optimizers that add up gradients over commits, whose step is wrong if the world changes at one of them."""

    def __init__(self) -> None:
        _watch_steps()
        self._steps = 0
        self._last = WeakKeyDictionary[Optimizer, _Seen | None]()
        """One gradient of each optimizer, at the last commit."""

    def committing(self, kept: Iterable[object]) -> None:
        """Look at the optimizers among what a state keeps, at each commit.

        The gradients themselves are only looked at if no optimizer made a step since the last commit. If they are new
        then, they must not get into a step any more: :func:`_begins` refuses that. Those that a step or a loop without
        steps has left are not new, as in an evaluation that commits.
        """
        optimizers = [each for each in kept if isinstance(each, Optimizer)]
        steps = sum(_steps.get(each, 0) for each in optimizers)
        for optimizer in optimizers:
            seen = _one_of(optimizer)
            if not steps or steps != self._steps:  # Of an optimizer whose steps are not seen, nothing is known.
                _carried.pop(optimizer, None)
            elif seen is not None and ((last := self._last.get(optimizer)) is None or last.has_changed):
                _carried[optimizer] = _filled(optimizer)
            self._last[optimizer] = seen
        self._steps = steps


_steps: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
_carried: WeakKeyDictionary[Optimizer, list[_Seen]] = WeakKeyDictionary()
"""Gradients that a commit came upon, and that were not complete."""
_grown = WeakSet[Optimizer]()
"""Optimizers whose last step had such gradients."""


@cache
def _watch_steps() -> None:
    register_optimizer_step_pre_hook(lambda optimizer, *_: _begins(optimizer))
    register_optimizer_step_post_hook(lambda optimizer, *_: _ends(optimizer))


def _begins(optimizer: Optimizer) -> None:
    """Refuse a step of gradients that were added to since a commit, as was the one before.

    One alone may be right: a script that skips a step, and sets the gradients to 0 in place, looks the same.

    Raises:
        InvalidSettings: it is one.
    """
    carried = _carried.pop(optimizer, None)
    if not (carried and any(each.has_grown for each in carried)):
        _grown.discard(optimizer)
    elif optimizer not in _grown:
        _grown.add(optimizer)
    else:
        problem = "optimizer.step() has gradients that were added up over a commit(), and a new rank has only the last"
        remedy = "Commit after optimizer.step() alone. To accumulate gradients, use MicroBatches"
        raise InvalidSettings("DurableState.optimizer", problem, remedy)


def _ends(optimizer: Optimizer) -> None:
    _steps[optimizer] = _steps.get(optimizer, 0) + 1


def _one_of(optimizer: Optimizer) -> _Seen | None:
    """Return the last parameter's gradient, as a sample: nearest to the loss, so one that each backward pass makes."""
    for group in reversed(optimizer.param_groups):
        if parameters := group["params"]:
            return _seen(parameters[-1])
    return None


def _seen(parameter: Tensor) -> _Seen | None:
    gradient = parameter.grad
    return None if gradient is None else _Seen(ref(parameter), ref(gradient), gradient._version)


def _filled(optimizer: Optimizer) -> list[_Seen]:
    """Return the gradients that are not 0. None, if one is not finite: a gradient scaler has skipped that step."""
    found: list[_Seen] = []
    for parameter in _parameters(optimizer):
        if (seen := _seen(parameter)) is None or (gradient := seen.gradient()) is None:
            continue
        mine = gradient.to_local() if hasattr(gradient, "to_local") else gradient
        values = (mine._values() if mine.is_sparse else mine).detach()
        if not bool(values.isfinite().all()):
            return []
        if bool(values.any()):
            found.append(seen)
    return found
