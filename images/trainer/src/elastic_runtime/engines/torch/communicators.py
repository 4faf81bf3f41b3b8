"""NCCL's communicators of a broken world, whose waits would last until NCCL's own time-out."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

log = logging.getLogger(__name__)


def abort_communicators() -> None:
    """Of all process groups: who waits for one of their collectives is told an error; from any thread.

    As ``_abort_process_group`` of ``torch.distributed.distributed_c10d`` does, but the groups stay known: the rank's
    own thread takes them down when it has noticed. Without NCCL nothing happens. Tried with played groups alone.
    """
    if not dist.is_nccl_available():
        return
    found = [backend for group in list(distributed_c10d._world.pg_names) if (backend := _nccl(group))]
    if not found:
        return
    # Within one of NCCL's groups, for the communicators' ends wait for one another (pytorch/pytorch#119797).
    found[0]._group_start()
    for backend in found:
        try:
            backend.abort()
        except RuntimeError as error:
            log.warning("a communicator of NCCL does not end: %s", str(error)[:200])
    found[0]._group_end()


def _nccl(group: Any) -> Any:
    with suppress(RuntimeError):  # It has no backend for GPUs.
        backend = group._get_backend(torch.device("cuda"))
        if backend.name() == "nccl":
            return backend
    return None
