"""A training as one writes it for torchrun, knowing nothing of this package: ``plain_torchrun.py FOLDER STEPS EVERY``.

It writes a checkpoint every so many steps and when it gets SIGUSR1, and begins at the newest. Where there is a file
``stand-STEP``, it stands after that step until the file is gone. With ``DEVICE=cuda`` it trains on a GPU over NCCL,
which takes several ranks on one GPU where they seem to be on several hosts: ``OWN_HOSTS``.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

folder, steps, every = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
asked: list[int] = []
signal.signal(signal.SIGUSR1, lambda number, _frame: asked.append(number))
device = torch.device(os.environ.get("DEVICE", "cpu"))
if os.environ.get("OWN_HOSTS"):
    os.environ["NCCL_HOSTID"] = os.environ["RANK"]
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
rank, size = dist.get_rank(), dist.get_world_size()
assert (rank, size) == (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
assert dist.is_torchelastic_launched()
torch.manual_seed(0)
model = torch.nn.Linear(4, 1).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
step, file = 0, folder / "checkpoint.pt"
if file.exists():
    step, of_model, of_optimizer = torch.load(file, map_location=device)
    model.load_state_dict(of_model)
    optimizer.load_state_dict(of_optimizer)
parallel = DistributedDataParallel(model)


def save() -> None:
    if rank == 0:
        torch.save((step, model.state_dict(), optimizer.state_dict()), part := folder / "checkpoint.part")
        part.replace(file)


def agreed(mine: bool) -> bool:
    """Whether any rank says so."""
    said = torch.tensor(float(mine), device=device)
    dist.all_reduce(said, op=dist.ReduceOp.MAX)
    return bool(said)


def between_steps() -> None:
    """End here if anybody was asked to, or stand."""
    stand = folder / f"stand-{step}"
    while True:
        if agreed(bool(asked)):
            save()
            sys.exit(0)
        if not agreed(rank == 0 and stand.exists()):
            break
        (folder / f"at-{step}").touch()
        time.sleep(0.01)


between_steps()
while step < steps:
    features = torch.randn(8, 4, generator=torch.Generator().manual_seed(step * size + rank)).to(device)
    loss = (parallel(features) - features.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if rank == 0:
        with (folder / "steps").open("a") as done:
            done.write(f"{step} {size}\n")
    if step % every == 0:
        save()
    between_steps()
dist.destroy_process_group()
