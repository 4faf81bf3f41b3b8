"""The training of the hand-over rounds: DurableState around a model of a given size, a commit at every step.

Records and stop file as in ``benchmarks/training.py``. The ranks sleep through most of a step, as they do while a GPU
works.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import horovod.torch as hvd
import torch
from torch.nn.functional import cross_entropy

from benchmarks.durable.model import SizedModel, batch
from elastic_runtime.torch import DurableState

STEP = 0.05
"""Seconds of sleep in each step."""


def main() -> None:
    """Train until told to stop."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, required=True, help="folder for the step records")
    parser.add_argument("--stop", type=Path, required=True, help="file that will name the last step")
    parser.add_argument("--megabytes", type=int, required=True, help="size of the model")
    options = parser.parse_args()
    torch.set_num_threads(1)
    hvd.init()
    torch.manual_seed(0)
    model = SizedModel(options.megabytes)
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.01, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.head.named_parameters())
    state = DurableState(model=model, optimizer=optimizer)
    features, labels = batch()
    entries = 0
    with (options.records / f"{os.getpid()}.jsonl").open("a", buffering=1) as records:

        @hvd.elastic.run  # type: ignore[untyped-decorator]  # horovod has no types
        def train(state: DurableState) -> None:
            nonlocal entries
            entries += 1
            while not _stopped(options.stop, state.step):
                time.sleep(STEP)
                state.step += 1
                optimizer.zero_grad()
                cross_entropy(model(features), labels).backward()  # type: ignore[no-untyped-call]  # of torch
                optimizer.step()
                record = {"t": time.time_ns(), "step": state.step, "rank": hvd.rank(), "size": hvd.size()}
                records.write(json.dumps({**record, "entry": entries}) + "\n")
                state.commit()

        train(state)


def _stopped(stop: Path, step: int) -> bool:
    try:
        return step >= int(stop.read_text())
    except FileNotFoundError:
        return False


if __name__ == "__main__":
    main()
