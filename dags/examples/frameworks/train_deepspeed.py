"""Train with DeepSpeed's ZeRO, restarted where it was at each change of the workers.

``train_deepspeed.py --folder FOLDER``. What is saved by some ranks is loaded by others: rank 0 makes a universal
checkpoint of it first. Of the runtime it has where checkpoints are, whether all ranks are to write one and end, and the
report.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist

from elastic_runtime.torch import report
from elastic_runtime.torch.restarts import RestartRequest, newest_checkpoint, write_checkpoint

BATCH = 12
"""Samples of a step, over all ranks: 1, 2, 3 or 4."""
SAVED, UNIVERSAL = "saved", "universal"


def make_universal(checkpoint: Path, stage: int) -> None:
    """By rank 0, once; the others wait."""
    if dist.get_rank() == 0 and not (checkpoint / UNIVERSAL).exists():
        part = checkpoint / f"{UNIVERSAL}.part"
        words = ["--input_folder", checkpoint / SAVED, "--output_folder", part]
        workers = ["--num_extract_workers", "1", "--num_merge_workers", "1"]
        # It asks for more than there is where DeepSpeed is used without Megatron.
        missing = ["--inject_missing_state"] if stage < 3 else []
        subprocess.run(
            [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", *words, *workers, *missing], check=True
        )
        part.rename(checkpoint / UNIVERSAL)
    dist.barrier()


def main() -> None:
    """One rank, in one world."""
    options = parse_arguments()
    deepspeed.init_distributed("nccl" if torch.cuda.is_available() else "gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    request = RestartRequest()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    found = newest_checkpoint(options.folder)
    if found:
        make_universal(found[0], options.stage)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=optimizer,
        config={
            "train_batch_size": BATCH,
            "train_micro_batch_size_per_gpu": BATCH // size,
            "zero_optimization": {"stage": options.stage},
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "checkpoint": {"load_universal": bool(found)},
        },
    )
    step = 0
    if found:
        path, step = found
        engine.load_checkpoint(str(path), tag=UNIVERSAL)
    while step < options.steps:
        batch = torch.randn(BATCH, 5, generator=torch.Generator().manual_seed(step)).chunk(size)[rank].to(engine.device)
        loss = (engine(batch) - batch.sum(1, keepdim=True)).square().mean()
        engine.backward(loss)
        engine.step()
        step += 1
        report(step, of=options.steps, loss=loss.detach())
        if request.agreed():
            write_checkpoint(options.folder, step, lambda path: engine.save_checkpoint(str(path), tag=SAVED))
            break
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # Without the end of C++'s own threads, at which ZeRO 3 was seen to abort: that would count as a loss.


def parse_arguments() -> argparse.Namespace:
    """Raises SystemExit with what is wrong."""
    parser = argparse.ArgumentParser(description="One rank of a training with DeepSpeed.")
    parser.add_argument("--folder", type=Path, required=True, help="of checkpoints, which every worker sees")
    parser.add_argument("--steps", type=int, default=200, help="optimizer steps")
    parser.add_argument("--stage", type=int, choices=(1, 2, 3), default=2, help="of ZeRO")
    return parser.parse_args()


if __name__ == "__main__":
    main()
