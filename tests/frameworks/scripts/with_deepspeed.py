"""A training as one writes it with DeepSpeed's ZeRO, on CPUs, by Gloo; the stage is in ``STAGE``.

What is saved by some ranks is loaded by others: rank 0 makes a universal checkpoint of it first. Of this package it has
where checkpoints are, and whether all ranks are to write one and end.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from steering import FOLDER, STEPS, done, end, note_loss

from elastic_runtime.torch.restarts import RestartRequest, newest_checkpoint, write_checkpoint

STAGE = int(os.environ["STAGE"])
BATCH = 12  # Samples of a step, over all ranks: 1, 2, 3 or 4.
SAVED, UNIVERSAL = "saved", "universal"


def made_universal(checkpoint: Path) -> None:
    """By rank 0, once; the others wait."""
    if dist.get_rank() == 0 and not (checkpoint / UNIVERSAL).exists():
        part = checkpoint / f"{UNIVERSAL}.part"
        words = ["--input_folder", checkpoint / SAVED, "--output_folder", part]
        workers = ["--num_extract_workers", "1", "--num_merge_workers", "1"]
        # It asks for more than there is where DeepSpeed is used without Megatron.
        missing = ["--inject_missing_state"] if STAGE < 3 else []
        subprocess.run(
            [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", *words, *workers, *missing], check=True
        )
        part.rename(checkpoint / UNIVERSAL)
    dist.barrier()


def main() -> None:
    """One rank, in one world."""
    deepspeed.init_distributed("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    request = RestartRequest()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    found = newest_checkpoint(FOLDER / "checkpoints")
    if found:
        made_universal(found[0])
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=optimizer,
        config={
            "train_batch_size": BATCH,
            "train_micro_batch_size_per_gpu": BATCH // size,
            "zero_optimization": {"stage": STAGE},
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "checkpoint": {"load_universal": bool(found)},
        },
    )
    step = 0
    if found:
        path, step = found
        engine.load_checkpoint(str(path), tag=UNIVERSAL)
    while step < STEPS:
        batch = torch.randn(BATCH, 5, generator=torch.Generator().manual_seed(step)).chunk(size)[rank]
        loss = (engine(batch) - batch.sum(1, keepdim=True)).square().mean()
        engine.backward(loss)
        engine.step()
        step += 1
        note_loss(step, loss)
        done(step)
        if request.agreed():
            write_checkpoint(FOLDER / "checkpoints", step, lambda path: engine.save_checkpoint(str(path), tag=SAVED))
            break
    end()


main()
