"""The training of ``torch_training.py`` with TorchFT, as its ``train_ddp.py`` has it: each rank is a replica group.

Runs in an environment of its own, without ``elastic_runtime``. A step that TorchFT does not commit is not recorded, nor
one in which a newcomer only takes over the state.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.own_session import take_own_session  # the path above has to be there first
from benchmarks.torch_training import BATCH, MODELS


def main() -> None:
    """Train until told to stop."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, required=True, help="folder for the step records")
    parser.add_argument("--stop", type=Path, required=True, help="file that will name the last step")
    parser.add_argument("--input", choices=MODELS, default="small", help="which model")
    options = parser.parse_args()
    take_own_session()
    logging.basicConfig(level=logging.WARNING)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    width, depth = MODELS[options.input]
    module = nn.Sequential(*(nn.Linear(width, width) for _ in range(depth)))
    inner = torch.optim.SGD(module.parameters(), lr=1e-4, momentum=0.9)

    def load(state: dict[str, Any]) -> None:
        module.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        load_state_dict=load,
        state_dict=lambda: {"model": module.state_dict(), "optimizer": inner.state_dict()},
        min_replica_size=1,
        replica_id=f"replica_{os.environ['REPLICA_GROUP_ID']}",
        timeout=timedelta(seconds=30),
        hostname="127.0.0.1",
    )
    parallel, optimizer = DistributedDataParallel(manager, module), Optimizer(manager, inner)
    batch = torch.randn(BATCH, width)
    with (options.records / f"{os.getpid()}.jsonl").open("a", buffering=1) as records:
        while not (options.stop.exists() and manager.current_step() >= int(options.stop.read_text())):
            before = manager.current_step()
            optimizer.zero_grad()
            parallel(batch).square().mean().backward()
            optimizer.step()
            rank = manager.participating_rank()
            if rank is not None and manager.current_step() > before:
                at = {"step": manager.current_step(), "rank": rank, "size": manager.num_participants()}
                records.write(json.dumps({"t": time.time_ns(), **at, "entry": 1}) + "\n")
    manager.shutdown(wait=False)


if __name__ == "__main__":
    main()
