"""The training that ``torch_peers.py`` runs: DistributedDataParallel over Gloo, one thread a rank.

Under our launcher it is a training function with a ``DurableState`` that commits at every step, or at every tenth with
the input ``large/10``; under ``torchrun`` what torch's documentation has for elastic jobs: ``init_process_group()`` and
a snapshot by rank 0 that the next start loads. Each rank appends ``{"t", "step", "rank", "size", "entry"}`` to
``RECORDS/PID.jsonl`` after each step. It ends at the step that the file STOP names, which all ranks agree on at each
step.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.own_session import take_own_session  # the path above has to be there first

MODELS = {"small": (180, 3), "large": (1000, 10)}
"""Width and depth: 0.1 and 10 million parameters."""
BATCH = 4
SNAPSHOT_EVERY = 100
"""Steps."""


@contextmanager
def begin(description: str | None) -> Iterator[tuple[TextIO, Path, str]]:
    """This process is a rank: the file of its records, the file STOP, and what ``--input`` says."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, required=True, help="folder for the step records")
    parser.add_argument("--stop", type=Path, required=True, help="file that will name the last step")
    parser.add_argument("--input", default="small", help="which model")
    options = parser.parse_args()
    take_own_session()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with (options.records / f"{os.getpid()}.jsonl").open("a", buffering=1) as records:
        yield records, options.stop, options.input


def main() -> None:
    """Train until told to stop."""
    with begin(__doc__) as (records, stop, size):
        model_size, _, every = size.partition("/")
        width, depth = MODELS[model_size]
        model = nn.Sequential(*(nn.Linear(width, width) for _ in range(depth)))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
        stepper = Stepper(width, records, stop)
        if "TORCHELASTIC_RUN_ID" in os.environ:
            by_torchrun(model, optimizer, stepper, stop.with_name("snapshot.pt"))
        else:
            by_us(model, optimizer, stepper, int(every or 1))


class Stepper:
    """One step, and its record."""

    def __init__(self, width: int, records: TextIO, stop: Path) -> None:
        self._records, self._stop = records, stop
        self._batch = torch.randn(BATCH, width)

    def step(self, parallel: nn.Module, number: int, optimizer: torch.optim.Optimizer) -> bool:
        """Returns whether it was the last."""
        optimizer.zero_grad()
        parallel(self._batch).square().mean().backward()
        optimizer.step()
        record = {"t": time.time_ns(), "step": number, "rank": dist.get_rank(), "size": dist.get_world_size()}
        self._records.write(json.dumps({**record, "entry": 1}) + "\n")
        last = torch.tensor(float(self._stop.exists() and number >= int(self._stop.read_text())))
        dist.all_reduce(last)
        return bool(last.item())


def by_us(model: nn.Module, optimizer: torch.optim.Optimizer, stepper: Stepper, commit_every: int) -> None:
    """Train under our launcher."""
    from elastic_runtime.torch import DurableState, elastic

    @elastic.run(in_place=True)
    def train(state: DurableState) -> None:
        parallel = DistributedDataParallel(model)
        over = False
        while not over:
            state.step += 1
            over = stepper.step(parallel, state.step, optimizer)
            state.commit()

    train(DurableState(model=model, optimizer=optimizer, commit_every=commit_every))


def by_torchrun(model: nn.Module, optimizer: torch.optim.Optimizer, stepper: Stepper, snapshot: Path) -> None:
    """Train under torchrun, from the newest snapshot."""
    dist.init_process_group("gloo")
    number = resumed(model, optimizer, snapshot)
    parallel = DistributedDataParallel(model)
    over = False
    while not over:
        number += 1
        over = stepper.step(parallel, number, optimizer)
        if number % SNAPSHOT_EVERY == 0 and dist.get_rank() == 0:
            beside = snapshot.with_suffix(".new")
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": number}, beside)
            os.replace(beside, snapshot)
    dist.destroy_process_group()


def resumed(model: nn.Module, optimizer: torch.optim.Optimizer, snapshot: Path) -> int:
    """Load the newest snapshot, and return its step; 0 where there is none. A collective."""
    # Rank 0 says which snapshot: another may be written meanwhile.
    told: list[dict[str, object] | None] = [None]
    if dist.get_rank() == 0 and snapshot.exists():
        told = [torch.load(snapshot, weights_only=True)]
    dist.broadcast_object_list(told)
    if (found := told[0]) is None:
        return 0
    model.load_state_dict(found["model"])  # type: ignore[arg-type]  # as it was saved above
    optimizer.load_state_dict(found["optimizer"])  # type: ignore[arg-type]  # the same
    return int(str(found["step"]))


if __name__ == "__main__":
    main()
