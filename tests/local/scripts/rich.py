"""The trainings of ``doubles.py`` and ``parallel.py`` with all that a state may keep, and digests of it.

By Horovod or by torch.distributed, whichever its ranks are started by: AdamW with a scheduler and an EMA, and a second
model in bfloat16 whose optimizer has float32 master weights. ``IN_PLACE`` as for ``parallel.py``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch
from exact_sums import BATCH, build, commit, dataset, gradient
from pace import Pace
from parallel_gradients import Given, total
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
)

from elastic_runtime.torch import DurableState, GlobalBatches
from elastic_runtime.world import current_world


class ByHorovod:
    """Sums by Horovod."""

    def __init__(self) -> None:
        import horovod.torch as hvd

        self._hvd = hvd
        hvd.init()

    def optimizer(self, optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> Any:
        return self._hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), op=self._hvd.Sum)

    def parallel(self, model: torch.nn.Module) -> torch.nn.Module:
        return Given(model)

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._hvd.allreduce(tensor, op=self._hvd.Sum, name="half")

    def run(self, function: Callable[[Any], None]) -> Callable[[Any], None]:
        return self._hvd.elastic.run(function)


class ByTorch:
    """Sums by torch.distributed."""

    def optimizer(self, optimizer: torch.optim.Optimizer, _model: torch.nn.Module) -> Any:
        return optimizer

    def parallel(self, model: torch.nn.Module) -> torch.nn.Module:
        parallel = torch.nn.parallel.DistributedDataParallel(Given(model))
        parallel.register_comm_hook(None, total)
        return parallel

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        torch.distributed.all_reduce(tensor)
        return tensor

    def run(self, function: Callable[[Any], None]) -> Callable[[Any], None]:
        from elastic_runtime.torch import elastic

        return elastic.run(in_place=bool(os.environ.get("IN_PLACE")))(function)


def main() -> None:
    pace = Pace.from_environment()
    pace.door()
    engine = ByTorch() if "engines.torch" in os.environ["ELASTIC_RUNTIME_WORLD"] else ByHorovod()
    model, second, wide, data = build(), half(), build(), dataset()
    ema = averaged(model)
    optimizer = engine.optimizer(torch.optim.AdamW(model.parameters(), lr=0.01), model)
    kept = {
        "model": model,
        "optimizer": optimizer,
        "ema": ema,
        "half": second,
        "half_optimizer": MasterAdam(second.parameters()),
        "scheduler": schedule(optimizer),
        "scale": LossScale(),
        "seen": torch.zeros(3, dtype=torch.int64),
        "best": {"largest": (0, float("-inf")), "rates": []},
    }
    state = DurableState(**kept, commit_every=pace.state_every)
    batches = GlobalBatches(data, size=BATCH, seed=7, state=state, epochs=pace.epochs)

    def train(state: Any) -> None:
        world, parallel = current_world(), engine.parallel(model)
        pace.hold(state)
        for batch in batches:
            optimizer.zero_grad()
            parallel(gradient(model, data, batch.indices)).backward()
            optimizer.step()
            ema.update_parameters(model)
            state.scheduler.step()
            given = half_gradient(wide, second, state.scale.value, engine.sum, data, batch.indices)
            give_gradient(second, given)
            state.half_optimizer.step()
            state.scale.update()
            note_values(state, batch.step, given)
            found = digests(state, kept) if batch.step % DIGEST_EVERY == 0 else None
            pace.note(step=batch.step, rank=world.rank, size=world.size, time=time.monotonic(), digests=found)
            commit(state, batch, pace.commit_every)
            pace.hold(state)

    engine.run(pace.watched(train))(state)
    everything = (*model.parameters(), *ema.parameters(), *second.parameters())
    pace.note(done=state.step, weights=[float(weight) for each in everything for weight in each.detach().flatten()])


def note_values(state: Any, step: int, given: list[torch.Tensor]) -> None:
    """Into a tensor and a plain value of the state."""
    largest = max(float(each.abs().max()) for each in given)
    state.seen += torch.tensor([1, step, step % 7])
    rates = [*state.best["rates"], *state.scheduler.get_last_lr()][-3:]
    state.best = {"largest": max(state.best["largest"], (step, largest)), "rates": rates}


main()
