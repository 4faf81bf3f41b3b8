"""How long training stands for a checkpoint: DurableState, torch.save and torch.distributed.checkpoint, in turns.

A program: trains one rank and prints a line of JSON for each checkpoint. The three save the same model, optimizer and
folder in turns, while the training goes on with a commit at each step.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from statistics import median
from typing import Any

import horovod.torch as hvd
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.nn.functional import cross_entropy

from benchmarks.durable.model import SizedModel, batch
from elastic_runtime.run.spec import CheckpointSpec
from elastic_runtime.torch import DurableState

OURS, SAVE, ASYNC = "ours", "torch.save", "async_save"
METHODS = (OURS, SAVE, ASYNC)
EVERY = 3600.0
STEP = 0.02
"""Seconds of sleep in each step, as while a GPU works."""
PLAIN = 10
"""Steps between two checkpoints, which say what a step and a commit take without one."""


class Clock:
    """Monotonic seconds, with leaps that make a checkpoint due."""

    def __init__(self) -> None:
        self._leaps = 0.0

    def __call__(self) -> float:
        """Now."""
        return time.monotonic() + self._leaps

    def leap(self) -> None:
        """So far that one is due."""
        self._leaps += EVERY


class Trainer:
    """One rank in training."""

    def __init__(self, megabytes: int, folder: Path, device: torch.device) -> None:
        self._clock, self._folder, self._device = Clock(), folder, device
        self._model = SizedModel(megabytes).to(device)
        self._optimizer = torch.optim.SGD(self._model.head.parameters(), lr=0.01, momentum=0.9)
        self._batch = tuple(each.to(device) for each in batch())
        spec = CheckpointSpec((folder / "ours").as_uri(), every=EVERY, keep=1)
        self.state = DurableState(model=self._model, optimizer=self._optimizer, checkpoint=spec, clock=self._clock)

    def step(self) -> tuple[float, float]:
        """Train and commit; seconds of both, and of the commit alone."""
        begin = time.perf_counter()
        time.sleep(STEP)
        features, labels = self._batch
        self.state.step += 1
        self._optimizer.zero_grad()
        cross_entropy(self._model(features), labels).backward()  # type: ignore[no-untyped-call]  # of torch
        self._optimizer.step()
        self._computed()
        committing = time.perf_counter()
        self.state.commit()
        self._computed()
        end = time.perf_counter()
        return end - begin, end - committing

    def _computed(self) -> None:
        """What was asked of the device is done; what goes on beside the training is not waited for."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    def _tree(self) -> dict[str, Any]:
        return {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict(), "step": self.state.step}

    def _commits(self, count: int) -> list[float]:
        return [self.step()[1] for _ in range(count)]

    def checkpoint(self, method: str) -> dict[str, float]:
        """Take one, and train on until it is durable.

        Returns:
            ``stall``: seconds for which the training stood; ``durable``: until it was written; ``slowed``: seconds
            by which all steps until then took longer than steps do, the stall included.
        """
        plain = [self.step() for _ in range(PLAIN)]
        a_step, a_commit = (median(times) for times in zip(*plain, strict=True))
        if method == ASYNC:  # Its own does not remove what was there, as ours does once the new one is durable.
            shutil.rmtree(self._folder / method, ignore_errors=True)
        begin = time.perf_counter()
        done = self._begin(method)
        stall, commits = time.perf_counter() - begin, list[float]()
        while not done():
            commits.append(self.step()[1])
        durable = time.perf_counter() - begin
        slowed = durable - len(commits) * a_step
        if method == OURS:
            # Training stands in the commit that begins it, and in the next one, which copies to other memory.
            commits.append(self.step()[1])
            stall = sum(commits[:2]) - 2 * a_commit
        return {"stall": stall, "durable": durable, "slowed": slowed, "commit": a_commit}

    def _begin(self, method: str) -> Callable[[], bool]:
        """Begin one; the answer says whether it is durable."""
        if method == OURS:
            self._clock.leap()
            before = self._published()
            return lambda: self._published() > before
        path = self._folder / method
        if method == SAVE:
            path.mkdir(exist_ok=True)
            torch.save(self._tree(), path / "state.pt")
            return lambda: True
        future = async_save(self._tree(), checkpoint_id=path)
        assert isinstance(future, Future)
        return future.done

    def _published(self) -> str:
        """Name of the newest."""
        folder = self._folder / "ours"
        return max((path.name for path in folder.glob("ckpt-*")), default="")


def rounds(trainer: Trainer, count: int) -> Iterator[dict[str, Any]]:
    """So many of each method; who begins changes from round to round. One of each goes before, and is not told."""
    for method in METHODS:
        trainer.checkpoint(method)
    for number in range(count):
        for index in range(len(METHODS)):
            method = METHODS[(number + index) % len(METHODS)]
            yield {"method": method, **trainer.checkpoint(method)}


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, required=True, help="size of the model")
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="empty; for the checkpoints")
    parser.add_argument("--device", type=torch.device, default="cpu", help="where the model lies")
    options = parser.parse_args()
    torch.set_num_threads(1)
    hvd.init()
    # async_save wants a process group for the CPU, of one rank as ours.
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    for line in rounds(Trainer(options.megabytes, options.folder, torch.device(options.device)), options.rounds):
        print(json.dumps(line), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
