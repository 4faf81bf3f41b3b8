"""A model in bfloat16 under ``fully_shard``, whose optimizer has float32 master weights, with all else of ``rich.py``.

What every rank has whole is a second model in double precision, its AdamW with a scheduler, and its EMA. Weights are
the same to the last bit in worlds of any size; notes have digests as those of ``rich.py``.
"""

from __future__ import annotations

import os
import time
from typing import Any

import torch
import torch.distributed as dist
from exact_sums import BATCH, build, commit, dataset, gradient
from pace import Pace
from rich_state import (
    DIGEST_EVERY,
    LossScale,
    MasterAdam,
    averaged,
    digests,
    give_gradient,
    half,
    half_gradient,
    schedule,
    whole,
)
from torch.distributed.fsdp import fully_shard

from elastic_runtime.torch import GlobalBatches, ShardedState, elastic


def build_sharded() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = half()
    for layer in (model[0], model[2], model):
        fully_shard(layer)
    return model, MasterAdam(model.parameters())


def total(tensor: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(tensor)
    return tensor


def main() -> None:
    pace = Pace.from_environment()
    pace.door()
    double, wide, data = build(), build(), dataset()
    optimizer = torch.optim.AdamW(double.parameters(), lr=0.01)
    kept = {
        "ema": averaged(double),
        "double": double,
        "double_optimizer": optimizer,
        "scheduler": schedule(optimizer),
        "scale": LossScale(),
        "seen": torch.zeros(2, dtype=torch.int64),
    }
    state = ShardedState(build_sharded, **kept, commit_every=pace.state_every)
    batches = GlobalBatches(data, size=BATCH, seed=7, state=state, epochs=pace.epochs)

    @elastic.run(in_place=bool(os.environ.get("IN_PLACE")))
    @pace.watched
    def train(state: Any) -> list[float]:
        pace.hold(state)
        for batch in batches:
            given = half_gradient(wide, state.model, state.scale.value, total, data, batch.indices)
            give_gradient(state.model, given)
            state.optimizer.step()
            sums = [total(each) for each in gradient(double, data, batch.indices)]
            give_gradient(double, sums)
            optimizer.step()
            state.ema.update_parameters(double)
            state.scheduler.step()
            state.scale.update()
            state.seen += torch.tensor([1, batch.step])
            found = digests(state, ("model", "optimizer", *kept)) if batch.step % DIGEST_EVERY == 0 else None
            places = {"rank": dist.get_rank(), "size": dist.get_world_size()}
            pace.note(step=batch.step, **places, time=time.monotonic(), digests=found)
            commit(state, batch, pace.commit_every)
            pace.hold(state)
        everything = (*state.model.parameters(), *double.parameters(), *state.ema.parameters())
        return [float(weight) for each in everything for weight in whole(each.detach()).flatten()]

    weights = train(state)
    pace.note(done=state.step, weights=weights)


main()
