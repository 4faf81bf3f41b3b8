"""Waits for collectives of Gloo's that their broken world would never end.

Gloo (as in torch 2.13: ``gloo/transport/tcp/pair.cc``) forgets a piece that it could not send to a peer that is gone:
``write`` leaves it in ``tx_``, and ``signalException`` tells those alone whose pieces are elsewhere. So a rank that was
stopped, or slow, while a peer came to an ``all_reduce`` and ended waits for its own piece to be sent, until the group's
time is out, with every socket shut. A script's ``work.wait()``, as within torch's Python functions, looks every second
whether the world is broken. What waits within C++, as the reducer of ``DistributedDataParallel``, cannot be had back:
there :class:`~.standstill.Standstill` tells it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work

from elastic_runtime.engines.torch.sending import wait_for


def watch_waits(is_broken: Callable[[], bool]) -> None:
    """From now on, where all of this process's collectives are Gloo's: NCCL's end otherwise.

    Args:
        is_broken: whether the present world is; such a wait raises :class:`~.sending.Stuck` then.
    """
    if torch.accelerator.is_available() or not dist.is_gloo_available():
        return
    wait = Work.wait

    @wraps(wait)
    def watched(work: Work, *timeout: Any, **named: Any) -> bool:
        if timeout or named or not _is_collective(work):
            return wait(work, *timeout, **named)
        wait_for(work, is_broken, patience=None)
        return True

    Work.wait = watched  # type: ignore[method-assign, assignment]


def _is_collective(work: Work) -> bool:
    """Not a message to or from one rank: to stop waiting for one is to close its connection."""
    try:
        work.get_future()
    except (RuntimeError, NotImplementedError):
        return False
    return True
