"""Adds up the column ``number`` of a DataFrame: a rank of test_train.py."""

from __future__ import annotations

import os
import sys

import torch

from elastic_runtime import Shards
from elastic_runtime.spark.data import parts
from elastic_runtime.torch import DurableState, elastic, report

sys.path.append(os.environ["WITH_PYARROW"])  # Behind all others, whose numpy is the one that torch has.
from pyarrow import parquet

model = torch.nn.Linear(1, 1)
state = DurableState(model=model, total=0.0)
shards = Shards(names=parts(), per_step=2, seed=0, state=state)


@elastic.run
def train(state: DurableState) -> None:
    """To the last step; called anew for each world."""
    for step in shards:
        own = sum((sum(parquet.read_table(shard.name)["number"].to_pylist()) for shard in step), 0)
        total = torch.tensor(float(own))
        torch.distributed.all_reduce(total)
        state.total += total.item()
        report(step.step, total=state.total)
        state.commit()


train(state)
