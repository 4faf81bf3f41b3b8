"""A learning-rate scheduler in a stock state of Horovod's, and what an adapted Horovod refuses."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import horovod
import horovod.torch.elastic.state as elastic_state
import pytest
import torch

from elastic_runtime.engines.horovod import rank as adaptation
from elastic_runtime.protocol.rank_sockets import RANK_SOCKET
from elastic_runtime.torch.handlers import StateDictHandler


def other_rank_0(scheduler: Any) -> Callable[..., Any]:
    """``broadcast_object`` of a rank that is not 0: what comes is a copy of rank 0's, by pickle."""
    return lambda _value, **_arguments: pickle.loads(pickle.dumps(scheduler))


def training(rate: float) -> tuple[torch.optim.SGD, torch.optim.lr_scheduler.LRScheduler]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate)
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)


def step(optimizer: torch.optim.Optimizer, scheduler: Any) -> float:
    optimizer.step()
    scheduler.step()
    return float(optimizer.param_groups[0]["lr"])


class TestScheduler:
    """horovod#1281: a scheduler in TorchState is pickled with a copy of its optimizer."""

    def test_stock_leaves_the_optimizer_without_a_scheduler(self, monkeypatch: pytest.MonkeyPatch) -> None:
        optimizer, scheduler = training(0.8)
        state = elastic_state.TorchState(scheduler=scheduler)
        state._bcast_object = other_rank_0({"scheduler": training(0.8)[1]} | {"model": None, "optimizer": None})
        state.sync()
        assert state.scheduler is not scheduler
        assert state.scheduler.optimizer is not optimizer
        optimizer.step()
        with pytest.warns(UserWarning, match="overridden"):  # as torch sees it: the copy's step() is not wrapped
            state.scheduler.step()
        assert optimizer.param_groups[0]["lr"] == 0.8
        assert scheduler.get_last_lr() == [0.8]

    def test_the_very_scheduler_stays_and_moves_the_very_optimizer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        registry = [(torch.optim.lr_scheduler.LRScheduler, StateDictHandler)]
        monkeypatch.setattr(elastic_state, "_handler_registry", registry)
        rank_0 = training(0.8)
        assert step(*rank_0) == 0.4
        optimizer, scheduler = training(0.8)
        optimizer.param_groups[0]["lr"] = 0.4  # as the optimizer's own handler does
        state = elastic_state.TorchState(scheduler=scheduler)
        monkeypatch.setattr("elastic_runtime.training.state.handlers.broadcast_tree", lambda *_: rank_0[1].state_dict())
        state._bcast_object = other_rank_0({"model": None, "optimizer": None})
        state.sync()
        assert state.scheduler is scheduler
        assert scheduler.optimizer is optimizer
        assert scheduler.state_dict() == rank_0[1].state_dict()
        assert step(optimizer, state.scheduler) == step(*rank_0) == 0.2

    def test_it_goes_back_to_the_last_commit(self) -> None:
        optimizer, scheduler = training(0.8)
        handler = StateDictHandler(scheduler)
        step(optimizer, scheduler)
        handler.save()
        committed = dict(scheduler.state_dict())
        step(optimizer, scheduler)
        for _ in range(2):  # what is kept is no part of what is used
            handler.restore()
            assert scheduler.state_dict() == committed
            step(optimizer, scheduler)


@pytest.mark.parametrize("value", ["1", "true", "TRUE"])
def test_autotune_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("HOROVOD_AUTOTUNE", value)
    with pytest.raises(SystemExit, match="HOROVOD_AUTOTUNE hangs"):
        adaptation.install()


def test_a_horovod_that_shows_no_token_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RANK_SOCKET, "/folder/link-0")
    monkeypatch.delattr(horovod, "SHOWS_TOKEN")
    with pytest.raises(SystemExit, match=r"build it with images/trainer/build-horovod\.sh"):
        adaptation.install()
