"""The training that ``sharded_peers.py`` runs: 30 M parameters under ``fully_shard`` with AdamW, over Gloo.

Under our launcher it has a ``ShardedState`` that commits at every step; under ``torchrun`` what torch's documentation
has for elastic jobs: ``init_process_group()``, and snapshots by ``torch.distributed.checkpoint`` that the next start
loads. Records and its end are those of ``torch_training.py``.

Where ranks have left, ours compare a sum over the bits of weights and AdamW's state from before the commit with the one
after it: it is the same for the same tensors, however they are sharded.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.torch_training import Stepper, begin  # the path above has to be there first

WIDTH, DEPTH = 1000, 30
SNAPSHOT_EVERY = 20
"""Steps."""


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    """In each world."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-5)


def checksum(state: Any) -> int:
    """Over the bits of all tensors of all ranks; wraps around at 64 bits."""
    total = torch.zeros((), dtype=torch.int64)
    for tensor in _tensors(state):
        if isinstance(tensor, DTensor):
            total += tensor.to_local().view(torch.int32).sum(dtype=torch.int64)
    dist.all_reduce(total)
    return int(total)


def _tensors(state: Any) -> Iterator[torch.Tensor]:
    yield from state.model.state_dict().values()
    for values in state.optimizer.state_dict()["state"].values():
        yield from values.values()


def by_us(stepper: Stepper) -> None:
    """Train under our launcher."""
    from elastic_runtime.torch import ShardedState, elastic

    @elastic.run(in_place=True)
    def train(state: ShardedState) -> None:
        over = False
        while not over:
            state.step += 1
            over = stepper.step(state.model, state.step, state.optimizer)
            before, size = checksum(state), dist.get_world_size()
            state.commit()
            # Not where one has come, which goes on with its first step.
            if size > dist.get_world_size():
                assert checksum(state) == before, "the state is another one"

    train(ShardedState(build))


def by_torchrun(stepper: Stepper, snapshots: Path) -> None:
    """Train under torchrun, from the newest snapshot."""
    dist.init_process_group("gloo")
    model, optimizer = build()
    number = _resumed(model, optimizer, snapshots)
    over = False
    while not over:
        number += 1
        over = stepper.step(model, number, optimizer)
        if number % SNAPSHOT_EVERY == 0:
            states = get_state_dict(model, optimizer)
            save({"model": states[0], "optimizer": states[1]}, checkpoint_id=str(snapshots / str(number)))
            if dist.get_rank() == 0:
                beside = snapshots / "newest.new"
                beside.write_text(str(number))
                os.replace(beside, snapshots / "newest")
    dist.destroy_process_group()


def _resumed(model: nn.Module, optimizer: torch.optim.Optimizer, snapshots: Path) -> int:
    snapshots.mkdir(exist_ok=True)
    told: list[str] = [""]
    if dist.get_rank() == 0 and (snapshots / "newest").exists():
        told = [(snapshots / "newest").read_text()]
    dist.broadcast_object_list(told)
    if not told[0]:
        return 0
    states = get_state_dict(model, optimizer)
    content: dict[str, Any] = {"model": states[0], "optimizer": states[1]}
    load(content, checkpoint_id=str(snapshots / told[0]))
    set_state_dict(model, optimizer, model_state_dict=content["model"], optim_state_dict=content["optimizer"])
    return int(told[0])


if __name__ == "__main__":
    with begin(__doc__) as (records, stop, _):
        if "TORCHELASTIC_RUN_ID" in os.environ:
            by_torchrun(Stepper(WIDTH, records, stop), stop.with_name("snapshots"))
        else:
            by_us(Stepper(WIDTH, records, stop))
