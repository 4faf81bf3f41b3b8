"""Two ranks, of which one is killed while it sends, and the other tells: ``half_a_message.py KIND RANK STORE``."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from elastic_runtime.engines.torch.sending import broadcast, exchange

kind, rank, store = sys.argv[1], int(sys.argv[2]), dist.FileStore(sys.argv[3], 2)
torch.set_num_threads(1)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=100))
large = torch.ones(10_000_000)


def go_on() -> None:
    while True:
        if kind == "broadcast":
            broadcast([large], source=1)
        else:
            exchange({1 - rank: [large[5_000_000:]]}, {1 - rank: [large[:5_000_000]]})


if rank == 1:
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
try:
    go_on()
except RuntimeError as error:
    print(f"after {time.process_time():.0f} s: {error}", flush=True)
os._exit(0)
