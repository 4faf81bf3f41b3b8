"""How a test steers a script: by files in a folder, as it does ``plain_torchrun.py``."""

from __future__ import annotations

import os
import resource
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist

from elastic_runtime.protocol.rank_link import RESTART_SIGNAL
from elastic_runtime.torch import restarts

FOLDER = Path(os.environ["STEERED"])
SIGNAL = signal.Signals[os.environ.get(RESTART_SIGNAL, "SIGTERM")]
TORN_AT, TORN_BYTES = int(os.environ.get("TORN_AT", "0")), 1000


def die_in_the_next_write() -> None:
    """By SIGKILL, once a file has so many bytes: less than a checkpoint's."""

    def kill(_number: int, _frame: object) -> None:
        # Lightning writes to a temporary file of its own first.
        (FOLDER / "torn").write_text("\n".join(os.listdir(FOLDER / "checkpoints")))
        os.kill(os.getpid(), signal.SIGKILL)

    signal.signal(signal.SIGXFSZ, kill)
    resource.setrlimit(resource.RLIMIT_FSIZE, (TORN_BYTES, resource.RLIM_INFINITY))


def done(step: int) -> None:
    """Note it, and stand where there is a file ``stand-STEP``, until it is gone; called by all ranks."""
    rank = dist.get_rank()
    if step == TORN_AT and rank == 0 and not (FOLDER / "torn").exists():
        die_in_the_next_write()
    if rank == 0:
        with (FOLDER / "steps").open("a") as steps:
            steps.write(f"{step} {dist.get_world_size()}\n")
    while True:
        stands = torch.tensor(float(rank == 0 and (FOLDER / f"stand-{step}").exists()))
        dist.broadcast(stands, 0)
        if not stands:
            return
        (FOLDER / f"at-{step}").touch()
        if SIGNAL in restarts._received:
            (FOLDER / f"asked-{step}").touch()
        time.sleep(0.01)


def note_loss(step: int, loss: torch.Tensor) -> None:
    """The mean over all ranks, by rank 0; called by all."""
    mean = loss.detach() / dist.get_world_size()
    dist.all_reduce(mean)
    if dist.get_rank() == 0:
        with (FOLDER / "losses").open("a") as losses:
            losses.write(f"{step} {mean.item()}\n")
