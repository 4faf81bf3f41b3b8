"""A rank is stopped while a peer comes to its ``all_reduce``, and ends: Gloo forgets a piece that cannot be sent.

``WAIT``: the script waits for it in ``python``, or within C++ (``native``). The test ends the peer, and has the rank
go on.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from pace import LOOK, Pace

from elastic_runtime.torch import DurableState, elastic

LAST, AT = 10, 5
pace = Pace.from_environment()
stopped, sent = (Path(pace.folder, "at", name) for name in ("stopped", "sent"))
state = DurableState(value=torch.zeros(4, dtype=torch.float64))


def both_stand(ones: torch.Tensor) -> None:
    if dist.get_rank() == 0:
        while not stopped.exists():
            time.sleep(LOOK)
        time.sleep(0.3)  # It stops with all its threads, a moment after it has said so.
        dist.all_reduce(ones, async_op=True)
        time.sleep(1.0)  # Gloo's thread sends what it can; nothing tells when it has.
        sent.touch()
        signal.pause()
    if os.environ["WAIT"] == "native":
        reduced = torch.ops._c10d_functional.all_reduce(ones, "sum", dist.group.WORLD.group_name)
        stand()
        torch.ops._c10d_functional.wait_tensor(reduced)
    else:
        work = dist.all_reduce(ones, async_op=True)
        stand()
        work.wait()


def stand() -> None:
    time.sleep(0.5)  # Gloo's thread takes up the collective.
    stopped.touch()
    os.kill(os.getpid(), signal.SIGSTOP)


@elastic.run
def train(state: DurableState) -> None:
    pace.note(joined=state.step)
    while state.step < LAST:
        ones = torch.ones(4, dtype=torch.float64) / dist.get_world_size()
        if state.step == AT and not stopped.exists():
            both_stand(ones)
        dist.all_reduce(ones)
        state.value += ones
        state.step += 1
        pace.note(step=state.step, rank=dist.get_rank(), size=dist.get_world_size(), value=state.value.tolist())
        state.commit()


train(state)
