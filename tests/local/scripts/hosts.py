"""A training whose rank 0 notes, in each world, what the hostfile comes to say of it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import horovod.torch as hvd
import torch
from pace import LOOK, Pace

from elastic_runtime.torch import DurableState


def main() -> None:
    pace = Pace.from_environment()
    torch.set_num_threads(1)
    hvd.init()
    state = DurableState(model=torch.nn.Linear(1, 1), step=0)
    hostfile, notes = Path(os.environ["ELASTIC_RUNTIME_HOSTFILE"]), Path(os.environ["NOTES"])

    @hvd.elastic.run
    def train(state: DurableState) -> None:
        if hvd.rank() == 0:
            while (text := hostfile.read_text()).rpartition("=")[2].strip() != str(hvd.size()):
                time.sleep(LOOK)  # The agent heard of the world when it was decided, and may be slower than the ranks.
            notes.with_suffix(".path").write_text(str(hostfile))
            with notes.open("a") as lines:
                lines.write(f"{hvd.size()}: {text}")
        pace.hold(state)
        while state.step < pace.epochs:
            state.step += 1
            state.commit()
            pace.hold(state)

    train(state)


main()
