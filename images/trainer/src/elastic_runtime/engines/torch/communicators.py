"""NCCL's communicators: their collectives run in the GPU's queue, behind the script's back.

A collective of NCCL's returns before it has begun. If a rank is lost, it never ends, until the communicator is aborted;
then it ends as if all were well, with anything in its tensors.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from elastic_runtime.logs import script_logger

log = script_logger(__name__)


def abort_communicators() -> None:
    """Abort the communicators of all process groups: waits for their collectives fail. Thread-safe.

    As ``_abort_process_group`` of ``torch.distributed.distributed_c10d`` does, but the groups stay known: the rank's
    own thread takes them down when it has noticed. Without NCCL nothing happens. A communicator that is still being
    made is not ended (docs/gpus.md).
    """
    found = _backends()
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


def complete_collectives() -> bool:
    """Wait until the current streams of this process's GPUs have done all that was asked of them, if NCCL is in use.

    A commit would copy, and count, what a collective has yet to bring, or never will.

    Returns:
        Whether NCCL is in use.
    """
    if not _backends():
        return False
    for index in range(torch.cuda.device_count()):
        # Another's stream would need a context, of half a gigabyte. torch's builds for CPUs have no such name.
        if torch._C._cuda_hasPrimaryContext(index):  # type: ignore[attr-defined]
            torch.cuda.current_stream(index).synchronize()
    return True


def _backends() -> list[Any]:
    if not dist.is_nccl_available():
        return []
    return [backend for group in list(distributed_c10d._world.pg_names) if (backend := _nccl(group))]


def _nccl(group: Any) -> Any:
    with suppress(RuntimeError):  # It has no backend for GPUs.
        backend = group._get_backend(torch.device("cuda"))
        if backend.name() == "nccl":
            return backend
    return None
