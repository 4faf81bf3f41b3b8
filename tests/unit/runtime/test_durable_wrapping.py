"""A stock state that was made durable by one line."""

from __future__ import annotations

from pathlib import Path

import horovod.torch as hvd
import pytest
import torch

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.torch import DurableState, make_durable
from tests.unit.runtime.durable_bench import everything, same, step, training

pytestmark = pytest.mark.usefixtures("horovod", "no_thread_left")


def test_keeps_what_the_stock_state_keeps_and_resumes_from_its_checkpoint(tmp_path: Path) -> None:
    with make_durable(hvd.elastic.TorchState(**training(), epoch=1), tmp_path.as_uri()) as first:
        step(first, 3)
        first.epoch = 2
        first.commit()
        expected = everything(first)
    second = make_durable(hvd.elastic.TorchState(**training(), epoch=1), tmp_path.as_uri())
    assert (type(second), second.step, second.epoch) == (type(first), first.step, 2)
    assert same(everything(second), expected)
    second.finish()


def test_counts_commits_where_the_state_counts_no_steps() -> None:
    state = make_durable(hvd.elastic.TorchState(model=torch.nn.Linear(2, 1), batch=0))
    for _ in range(3):
        state.commit()
    assert state.step == 3
    state.restore()
    assert state.step == 3


def test_leaves_the_steps_of_a_script_that_counts_them() -> None:
    state = make_durable(hvd.elastic.TorchState(model=torch.nn.Linear(2, 1), step=5))
    assert type(state) is DurableState
    state.commit()
    assert state.step == 5


def test_takes_reset_callbacks_over() -> None:
    calls: list[str] = []
    stock = hvd.elastic.TorchState(step=0)
    stock.register_reset_callbacks([lambda: calls.append("reset")])
    make_durable(stock).on_reset()
    assert calls == ["reset"]


class OwnState(hvd.elastic.TorchState):
    """With ways of its own."""


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        (OwnState(step=0), "OwnState is not hvd.elastic.TorchState"),
        (hvd.elastic.TorchState(link=1), "the name is taken"),
        (hvd.elastic.TorchState(path=Path()), "cannot be kept"),
        (None, "NoneType is not"),
    ],
)
def test_refuses_what_it_could_not_keep(state: object, problem: str) -> None:
    with pytest.raises(InvalidSettings, match=problem):
        make_durable(state)
