"""Gradients that a training function finds when it is called again, and those that a commit finds."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import horovod.torch as hvd
import pytest
import torch
from torch import nn

from elastic_runtime.engines.through_worlds import through_worlds
from elastic_runtime.errors import InvalidSettings
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


# Accumulated over commits


def backward(state: DurableState, factor: float = 1.0) -> None:
    (state.model(torch.ones(2, 3)).sum() * factor).backward()


@pytest.mark.parametrize("accumulated", [2, 4])
@pytest.mark.parametrize("zeroes", ["first", "last", "in memory"])
def test_accumulation_over_commits_is_refused(accumulated: int, zeroes: str) -> None:
    state = DurableState(**training())

    def train() -> None:
        for batch in range(3 * accumulated):
            if zeroes == "first" and batch % accumulated == 0:
                state.optimizer.zero_grad()
            backward(state)
            if batch % accumulated == accumulated - 1:
                state.optimizer.step()
                if zeroes != "first":
                    state.optimizer.zero_grad(set_to_none=zeroes == "last")
            state.step += 1
            state.commit()

    with pytest.raises(InvalidSettings, match="use MicroBatches"):
        train()
    assert state.step == 3 * accumulated - 1, "at the third: nothing is known before the first, and one may be right"


def test_a_step_that_is_skipped_is_no_accumulation_whatever_sets_gradients_to_0() -> None:
    state = DurableState(**training())
    for batch in range(12):
        state.optimizer.zero_grad(set_to_none=False)
        backward(state)
        if batch % 3 != 1:
            state.optimizer.step()
        state.step += 1
        state.commit()


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("zeroes", ["first", "last"])
def test_a_commit_after_each_step_is_not_and_neither_is_one_in_an_evaluation(zeroes: str, in_memory: bool) -> None:
    state = DurableState(**training())
    for _ in range(3):
        for _ in range(3):
            if zeroes == "first":
                state.optimizer.zero_grad(set_to_none=not in_memory)
            for _ in range(2):
                backward(state)
            state.optimizer.step()
            if zeroes == "last":
                state.optimizer.zero_grad(set_to_none=not in_memory)
            state.step += 1
            state.commit()
        for _ in range(3):
            with torch.no_grad():
                state.model(torch.ones(2, 3))
            state.commit()


def test_steps_that_are_skipped_are_not() -> None:
    """By a gradient scaler, or by a script that takes too large a norm for a fault."""
    state = DurableState(**training())
    for factor in (1.0, float("inf"), float("inf"), 1.0, 1e6, 1e6, 1.0):
        state.optimizer.zero_grad()
        backward(state, factor)
        if factor == 1.0:
            state.optimizer.step()
        state.commit()


def test_an_optimizer_that_steps_more_seldom_than_another_is_not() -> None:
    """As a generator's: each loss of the other network leaves gradients in it, which are forgotten before its step."""
    kept = training()
    other = nn.Linear(1, 1)
    state = DurableState(**kept, other=other, often=torch.optim.SGD(other.parameters(), lr=0.1))
    for number in range(12):
        state.often.zero_grad()
        other(state.model(torch.ones(2, 3))).sum().backward()
        state.often.step()
        if number % 4 == 3:
            for parameter in state.model.parameters():
                assert parameter.grad is not None
                parameter.grad.zero_()
            backward(state)
            state.optimizer.step()
        state.commit()


def test_a_restored_step_begins_anew() -> None:
    state = DurableState(**training())
    for _ in range(2):
        backward(state)
        state.optimizer.step()
        state.optimizer.zero_grad()
        state.commit()
    backward(state)
    state.restore()
    state.on_reset()
    state.on_train_again()
    for _ in range(3):
        backward(state)
        state.optimizer.step()
        state.optimizer.zero_grad()
        state.commit()


def test_what_is_seen_of_a_model_does_not_keep_it() -> None:
    state = DurableState(**training())
    for _ in range(3):
        backward(state)
        state.commit()
        state.optimizer.step()
    gone = weakref.ref(state.optimizer), weakref.ref(state.model[0].weight)
    for name, value in training().items():
        setattr(state, name, value)
    gc.collect()
    assert [each() for each in gone] == [None, None]


def test_a_gradient_scaler_begins_the_repeated_step_anew() -> None:
    """It counts, by optimizer, how far a step is: that is in no ``state_dict``."""
    kept = training()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    state = DurableState(**kept, scaler=scaler)

    def train(*, lost: bool = False) -> None:
        scaler.scale(state.model(torch.ones(2, 3)).sum()).backward()
        scaler.unscale_(state.optimizer)
        if lost:
            raise ConnectionError("a rank is lost")
        scaler.step(state.optimizer)
        scaler.update()
        state.optimizer.zero_grad()
        state.commit()

    train()
    with pytest.raises(ConnectionError):
        train(lost=True)
    state.restore()
    state.on_reset()
    state.on_train_again()
    train()
