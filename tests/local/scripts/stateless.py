"""A script that keeps no state: one rank ends with 1, each time; ``WHEN``: before its world, in it, or in a collective.

The others of ``after`` do nothing that would tell them, for longer than the test lasts.
"""

from __future__ import annotations

import os
import sys
import time

import torch

from elastic_runtime.world import current_world

LONG = 600.0
when = os.environ["WHEN"]
fails = os.environ["ELASTIC_RUNTIME_WORKER"] == "worker-1"

if fails and when == "before":
    sys.exit(1)
if os.environ["ENGINE"] == "torchrun":
    torch.distributed.init_process_group("gloo")
else:
    current_world().enter()
current_world().barrier()
if fails:
    if when == "inside":
        time.sleep(0.5)
    sys.exit(1)
if when == "inside":
    current_world().barrier()
time.sleep(LONG)
