"""Training in which rank 1 does not do what the others do at one step, and in which ranks differ where they may.

Arguments: what it does (a ``case`` below), and the number of steps.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from exact_engines import kit
from pace import Pace
from torch.nn.functional import mse_loss

from elastic_runtime.torch import DurableState
from elastic_runtime.world import current_world

STEP = 5
"""Before which rank 1 does so."""
EPOCH = 8
EARLY = 12
"""Step at which it ends, if it ends early."""
FEATURES = torch.ones(4, 8)


def all_reduce(tensor: torch.Tensor) -> None:
    if dist.is_initialized():
        dist.all_reduce(tensor)
    else:
        import horovod.torch as hvd

        hvd.allreduce_(tensor)


def sums(case: str, *, differs: bool) -> None:
    both = [torch.ones(8), torch.ones(8, dtype=torch.int32 if case == "kinds" else torch.float32)]
    for each in reversed(both) if differs and case in ("kinds", "swapped") else both:
        all_reduce(each)
    if differs and case == "extra":
        all_reduce(torch.ones(8))


def do_alone(model: Any, pair: Any) -> None:
    """What some ranks do, and others do not."""
    rank = dist.get_rank()
    if rank == 0:
        if model is not None:
            model(FEATURES)
        torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1).step()
        dist.send(torch.ones(1), 1)
    if rank == 1:
        dist.recv(torch.ones(1), 0)
    if rank < 2:
        dist.all_reduce(torch.ones(1), group=pair)
    dist.broadcast_object_list([{"rank": rank}], 0)
    dist.gather_object(rank, [None] * dist.get_world_size() if rank == 0 else None)
    dist.monitored_barrier()


def unequal_batches(state: DurableState, parallel: Any) -> None:
    """With torch's own ``join``, ranks may have different numbers of batches."""
    with parallel.join():
        for _ in range(1 + current_world().rank):
            mse_loss(parallel(FEATURES), torch.ones(4, 1)).backward()
            state.optimizer.step()


def main() -> None:  # noqa: C901  # one case a difference
    case, steps = sys.argv[1], int(sys.argv[2])
    pace = Pace.from_environment()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    engine = kit()

    def build() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 1))
        return model, torch.optim.SGD(model.parameters(), lr=0.01)

    state = engine.state(build)

    def train_step(parallel: Any, *, differs: bool) -> None:
        if case != "uneven":
            sums(case, differs=differs)
        state.optimizer.zero_grad()
        mse_loss(parallel(FEATURES), torch.ones(4, 1)).backward()
        if not (differs and case == "unstepped"):
            state.optimizer.step()

    @engine.run
    def train(state: DurableState) -> None:
        parallel = engine.parallel(state)
        pair = dist.new_group([0, 1]) if case == "kinds" else None
        pace.hold(state)  # The commit before it may have ended the world.
        while state.step < steps:
            is_odd, last = current_world().rank == 1, (state.step + 1) % EPOCH == 0
            differs = is_odd and state.step == STEP
            if pair is not None:
                do_alone(getattr(parallel, "module", None), pair)
            if not (is_odd and last and case == "uneven"):
                train_step(parallel, differs=differs)
            state.step += 1
            if (case == "uneven" and not last) or (differs and case == "uncommitted"):
                continue
            state.commit()
            pace.hold(state)
            if is_odd and case == "early" and state.step == EARLY:
                return
        if pair is not None and hasattr(parallel, "join"):
            unequal_batches(state, parallel)

    train(state)


main()
