"""A model under ``fully_shard`` with AdamW and clipped gradients; notes digests of all of its state.

``MESH=replicas`` has two replicas of it where the world is even (HSDP); ``COPIES=0`` keeps none on neighbours.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any

import torch
import torch.distributed as dist
from pace import Pace
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.functional import mse_loss

from elastic_runtime.torch import GlobalBatches, ShardedState, elastic


class Counted(torch.nn.Module):
    """Knows how often it was called in training, in a buffer that every rank has whole."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return inputs


def layers() -> torch.nn.Sequential:
    """Of five ranks, the last one has nothing."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), Counted(), torch.nn.Linear(16, 1))


def build() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model, mesh, size = layers(), None, dist.get_world_size()
    if os.environ.get("MESH"):
        replicas = 2 if size % 2 == 0 else 1
        mesh = init_device_mesh("cpu", (replicas, size // replicas), mesh_dim_names=("replicas", "shards"))
    for layer in (model[0], model[3], model):
        fully_shard(layer, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def digest(state: Any) -> str:
    """Of weights, buffers and AdamW's state; called by all ranks."""
    sha = hashlib.sha256()
    for tensor in state.model.state_dict().values():
        sha.update(whole(tensor).numpy().tobytes())
    for _, values in sorted(state.optimizer.state_dict()["state"].items()):
        for _, tensor in sorted(values.items()):
            sha.update(whole(tensor).numpy().tobytes())
    return sha.hexdigest()


def main() -> None:
    pace = Pace.from_environment()
    torch.set_num_threads(1)
    made = torch.Generator().manual_seed(3)
    features = torch.randn(100, 8, generator=made)
    data = torch.utils.data.TensorDataset(features, features[:, :1] * features[:, 1:2])
    state = ShardedState(build, neighbour_copies=os.environ.get("COPIES") != "0", seen=torch.zeros(2))
    batches = GlobalBatches(data, size=16, seed=7, state=state, epochs=pace.epochs)

    in_place = bool(os.environ.get("IN_PLACE"))

    @elastic.run(in_place=in_place)
    def train(state: Any) -> str:
        if not in_place:  # Else newcomers alone are here.
            pace.note(joined=state.step, rank=dist.get_rank(), size=dist.get_world_size(), digest=digest(state))
        pace.hold(state)
        for batch in batches:
            # Not behind the commit, where survivors may be in a world whose newcomers come to the loop's beginning.
            pace.note(after=batch.step - 1, digest=digest(state))
            inputs, targets = batch.data
            state.optimizer.zero_grad()
            (mse_loss(state.model(inputs), targets) * batch.weight).backward()
            norm = whole(torch.nn.utils.clip_grad_norm_(state.model.parameters(), 1.0))
            state.optimizer.step()
            state.seen += 1
            places = {"rank": dist.get_rank(), "size": dist.get_world_size()}
            pace.note(
                step=batch.step, **places, digest=digest(state), norm=float(norm), seen=state.seen.tolist(), loss=0.0
            )
            state.commit()
            pace.hold(state)
        return digest(state)

    pace.note(done=state.step, rank=0, digest=train(state), weights=[])


if __name__ == "__main__":
    main()
