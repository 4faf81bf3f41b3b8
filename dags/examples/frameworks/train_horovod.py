"""Train with Horovod without an elastic state, restarted where it was: ``train_horovod.py --folder FOLDER``.

Of the runtime it has where it resumes, what is agreed after each step, and the report.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import horovod.torch as hvd
import torch

from elastic_runtime.torch import report
from elastic_runtime.torch.restarts import RestartRequest, newest_checkpoint, write_checkpoint


def main() -> None:
    """One rank, in one world."""
    options = parse_arguments()
    hvd.init()
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    request, step = RestartRequest(), 0
    if newest := newest_checkpoint(options.folder):
        path, step = newest
        of_model, of_optimizer = torch.load(path)
        model.load_state_dict(of_model)
        optimizer.load_state_dict(of_optimizer)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    def write(part: Path) -> None:
        if hvd.rank() == 0:
            torch.save((model.state_dict(), optimizer.state_dict()), part)

    while step < options.steps:
        features = torch.randn(8, 4, generator=torch.Generator().manual_seed(step * hvd.size() + hvd.rank()))
        optimizer.zero_grad()
        loss = (model(features) - features.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        step += 1
        report(step, of=options.steps, loss=loss.detach())
        asked = request.agreed()
        if asked or step % options.save_every == 0 or step == options.steps:
            write_checkpoint(options.folder, step, write, ".pt")
        if asked:
            return


def parse_arguments() -> argparse.Namespace:
    """Raises SystemExit with what is wrong."""
    parser = argparse.ArgumentParser(description="One rank of a training with Horovod.")
    parser.add_argument("--folder", required=True, help="of checkpoints, which every worker sees")
    parser.add_argument("--steps", type=int, default=200, help="optimizer steps")
    parser.add_argument("--save-every", type=int, default=50, help="steps between checkpoints that nobody asks for")
    return parser.parse_args()


if __name__ == "__main__":
    main()
