"""One rank of a training with ``DistributedDataParallel``, ``GlobalBatches`` and loader workers, as users write it.

Records as in ``torch_training.py``. It ends at the step that the file STOP names, which all ranks agree on.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.evidence.language import (  # the path above has to be there first
    Lesson,
    build,
    prepare,
    read_text,
)
from benchmarks.evidence.leaks import LOADERS
from benchmarks.torch_training import begin
from elastic_runtime.torch import DurableState, GlobalBatches, elastic

BATCH = 24
"""Sequences of a step, over all ranks."""


class Windows(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Every window of the text."""

    def __init__(self, lesson: Lesson) -> None:
        self._text, self._context = read_text(), lesson.context

    def __len__(self) -> int:
        return len(self._text) - self._context - 1

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        window = self._text[index : index + self._context + 1].long()
        return window[:-1], window[1:]


def main() -> None:
    """Train until told to stop."""
    with begin(__doc__) as (records, stop, given):
        lesson = Lesson.parse(given)
        prepare()
        model, optimizer = build(lesson)
        state = DurableState(model=model, optimizer=optimizer)
        batches = GlobalBatches(Windows(lesson), size=BATCH, seed=0, state=state, epochs=100, num_workers=LOADERS)

        @elastic.run(in_place=True)
        def train(state: DurableState) -> None:
            parallel = DistributedDataParallel(model)
            for batch in batches:
                inputs, targets = batch.data
                optimizer.zero_grad()
                loss = functional.cross_entropy(parallel(inputs).flatten(0, 1), targets.flatten()) * batch.weight
                loss.backward()  # type: ignore[no-untyped-call]  # of torch
                optimizer.step()
                whole = torch.tensor([float(stop.exists() and batch.step >= int(stop.read_text())), loss.item()])
                dist.all_reduce(whole)
                rank, size = dist.get_rank(), dist.get_world_size()
                record = {"t": time.time_ns(), "step": batch.step, "rank": rank, "size": size, "entry": 1}
                records.write(json.dumps({**record, "loss": float(whole[1]) / size}) + "\n")
                state.commit()
                if whole[0]:
                    return

        train(state)


if __name__ == "__main__":
    main()
