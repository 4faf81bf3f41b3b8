"""A small training, and what became of it, for the tests of DurableState."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from elastic_runtime.protocol.rank_link import RankMessage
from elastic_runtime.torch import DurableState


def training(seed: int = 0) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4])
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler}


def step(state: DurableState, count: int = 1) -> None:
    for _ in range(count):
        state.step += 1
        generator = torch.Generator().manual_seed(state.step)
        state.optimizer.zero_grad()
        state.model(torch.randn(8, 3, generator=generator)).pow(2).mean().backward()
        state.optimizer.step()
        state.scheduler.step()


def everything(state: DurableState) -> dict[str, Any]:
    return {name: getattr(state, name).state_dict() for name in ("model", "optimizer", "scheduler")}


def same(one: Any, other: Any) -> bool:
    torch.testing.assert_close(one["model"], other["model"], rtol=0, atol=0)
    torch.testing.assert_close(one["optimizer"]["state"], other["optimizer"]["state"], rtol=0, atol=0)
    return bool(one["scheduler"] == other["scheduler"])


def after(steps: int) -> dict[str, Any]:
    """A training that nothing happened to."""
    state = DurableState(**training())
    step(state, steps)
    return everything(state)


def of_kind(kind: type[Any], messages: list[RankMessage]) -> list[Any]:
    return [message for message in messages if isinstance(message, kind)]
