"""Commits a step every 50 ms until a folder has a file ``end``, or fails at a step. Arguments: folder, step."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import horovod.torch as hvd
import torch

from elastic_runtime.torch import DurableState

folder, last = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None
hvd.init()
state = DurableState(model=torch.nn.Linear(1, 1))


@hvd.elastic.run
def train(state: DurableState) -> None:
    while not hvd.broadcast_object((folder / "end").exists()):  # Or one returns, and others commit without it.
        time.sleep(0.05)
        if state.step == last:
            raise SystemExit(3)
        state.step += 1
        state.commit()


train(state)
