"""Train with Accelerate, restarted where it was at each change of the workers: ``train_accelerate.py --folder FOLDER``.

Of the runtime it has where it resumes, a call after each step, and the report.
"""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator

from elastic_runtime.torch import report
from elastic_runtime.torch.accelerate import CheckpointAtRestart


def main() -> None:
    """One rank, in one world."""
    options = parse_arguments()
    torch.manual_seed(0)
    accelerator = Accelerator()
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    loader = torch.utils.data.DataLoader(torch.randn(40, 4), batch_size=8)  # an epoch is two or three steps
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    checkpoint = CheckpointAtRestart(accelerator, options.folder, save_every=options.save_every)
    step = checkpoint.resume()
    for batch in checkpoint.batches(loader, epochs=options.steps):
        if step == options.steps:
            break
        optimizer.zero_grad()
        loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        step += 1
        report(step, of=options.steps, loss=loss.detach())
        checkpoint.after(step)
    accelerator.end_training()


def parse_arguments() -> argparse.Namespace:
    """Raises SystemExit with what is wrong."""
    parser = argparse.ArgumentParser(description="One rank of a training with Accelerate.")
    parser.add_argument("--folder", required=True, help="of checkpoints, which every worker sees")
    parser.add_argument("--steps", type=int, default=200, help="optimizer steps")
    parser.add_argument("--save-every", type=int, help="steps between checkpoints for what nobody announces")
    return parser.parse_args()


if __name__ == "__main__":
    main()
