"""Gradients that a training function finds when it is called again, and those that a commit finds."""

from __future__ import annotations

from typing import Any

import horovod.torch as hvd
import pytest
import torch
from torch import nn

from elastic_runtime.engines.through_worlds import through_worlds
from elastic_runtime.torch import DurableState
from tests.unit.runtime.durable_bench import training

pytestmark = pytest.mark.usefixtures("horovod", "no_thread_left")


class Changes(Exception):
    """The world is another one."""


def gradients(state: Any) -> set[bool]:
    """Whether parameters have one."""
    return {parameter.grad is not None for parameter in state.model.parameters()}


def seen_by(state: Any, *ends: Exception) -> list[set[bool]]:
    """What each call of a training function finds that leaves its gradients, as long as it is ended by these."""
    seen: list[set[bool]] = []
    remaining = list(ends)

    def train() -> None:
        seen.append(gradients(state))
        state.model(torch.ones(2, 3)).sum().backward()
        if remaining:
            raise remaining.pop(0)

    through_worlds(state, train, Changes, lambda error: isinstance(error, ConnectionError), lambda: True)
    return seen


def test_there_are_none_when_training_is_called_again() -> None:
    state = DurableState(**training())
    state.model(torch.ones(2, 3)).sum().backward()
    first, *others = seen_by(state, ConnectionError("a rank is lost"), Changes())
    assert first == {True}, "what the script does before is its own"
    assert others == [{False}, {False}]
    assert gradients(state) == {True}


def test_those_of_an_optimizer_without_its_model_go_too() -> None:
    weight = nn.Parameter(torch.ones(2))
    state = DurableState(optimizer=torch.optim.SGD([weight], lr=0.1))
    weight.sum().backward()
    state.on_train_again()
    assert weight.grad is None


def test_horovods_optimizer_is_not_asked_which_refuses_while_it_exchanges() -> None:
    kept = training()
    optimizer = hvd.DistributedOptimizer(kept["optimizer"], named_parameters=kept["model"].named_parameters())
    state = DurableState(model=kept["model"], optimizer=optimizer)
    state.model(torch.ones(2, 3)).sum().backward()
    optimizer._handles = {next(state.model.parameters()): (None, None)}
    with pytest.raises(AssertionError):
        optimizer.zero_grad()
    state.on_train_again()
    optimizer._handles = {}
    assert gradients(state) == {False}
