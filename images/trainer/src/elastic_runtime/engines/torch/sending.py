"""Messages over Gloo that end for whoever lives, where a rank is killed in the middle of one.

Gloo (as in torch 2.13: ``gloo/transport/tcp/pair.cc``, ``signalException``) tells everybody who waits on a connection
that it is gone, but not who has half of a message, or waits for one to be sent: these wait until their time is out. In
a ring of several pieces, as of ``all_reduce``, there is nearly always another wait, which ends. ``broadcast``,
``all_gather``, ``all_to_all`` and messages from rank to rank have none. So what is here is made of the former; and of
messages that are waited for by a last piece of one byte, which is never half there, and by an answer.

Even an ``all_reduce`` of a few bytes was seen to wait for ever, once in some hundred losses: who waits for one here
looks every second whether the world is broken, and leaves it to itself then.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Work

from elastic_runtime.engines.torch.own_group import keep, own_group, timeout
from elastic_runtime.run.waits import LAST_WRITE

LOOK = timedelta(seconds=1)
_DATA, _ANSWERS = 0, 1
"""Tags of messages, and of answers to them."""


class Stuck(RuntimeError):
    """A collective of a broken world does not end; its process group cannot be taken down either."""


def wait_for(work: Any, is_broken: Callable[[], bool], max_wait: timedelta | None = None) -> None:
    """Until a collective of Gloo's has ended. Raises what that does; Stuck, some time after the world has broken.

    Args:
        work: of the collective.
        is_broken: whether the world is.
        max_wait: after which that raises; None: when its process group's time is out.
    """
    deadline = time.monotonic() + (max_wait.total_seconds() if max_wait else math.inf)
    while True:
        try:
            work.wait(LOOK)
        except RuntimeError:
            if work.is_completed():  # With an error of its own, or just after this look.
                work.wait(LOOK)
                return
            if time.monotonic() > deadline:
                raise
            if is_broken():
                raise Stuck("a collective of c10d does not end, in a world that is broken") from None
        else:
            return


def maximum(numbers: Sequence[float], is_broken: Callable[[], bool]) -> list[float]:
    """Return the maximum of each number over all ranks. A collective.

    Args:
        numbers: as many on all ranks.
        is_broken: whether the world is.
    """
    local = torch.tensor(numbers, dtype=torch.float64)
    wait_for(own_group().allreduce([local], dist.ReduceOp.MAX), is_broken)
    greatest: list[float] = local.tolist()
    return greatest


def meet(is_broken: Callable[[], bool]) -> None:
    """Wait until all ranks are here, of which one may write a long last checkpoint; a collective.

    It ends where the world breaks.

    Args:
        is_broken: whether the world is.
    """
    options = dist.AllreduceOptions()
    options.timeout = timedelta(seconds=LAST_WRITE)
    wait_for(own_group().allreduce([torch.zeros(1)], options), is_broken, options.timeout)


def add_up(tensor: Tensor, is_broken: Callable[[], bool]) -> None:
    """Overwrite a tensor in host memory, of one shape and type on all ranks, with their sum; a collective.

    Args:
        tensor: contiguous.
        is_broken: whether the world is.
    """
    wait_for(own_group().allreduce([tensor]), is_broken)


def broadcast(tensors: Sequence[Tensor], source: int = 0, is_broken: Callable[[], bool] = lambda: False) -> None:
    """Overwrite contiguous tensors with one rank's; a collective.

    Args:
        tensors: on any device. Those on GPUs are sent in the default group, which has the GPUs' backend.
        source: the rank.
        is_broken: whether the world is.
    """
    is_source = dist.get_rank() == source
    works = []
    moved: list[tuple[Tensor, Tensor]] = []
    for tensor in tensors:
        if not tensor.numel():
            continue
        flat = tensor.reshape(-1).view(torch.uint8)
        if tensor.device.type != "cpu":
            works.append(dist.broadcast(flat, src=source, async_op=True))
            continue
        if not is_source:
            flat.zero_()
        words = _as_words(flat)
        if words.data_ptr() != flat.data_ptr():
            moved.append((flat, words.view(torch.uint8)))
        works.append(own_group().allreduce([words]))  # Bits and zeros add up to these bits.
    for work in works:
        if work is not None:
            wait_for(work, is_broken)
    for flat, received in moved:
        flat.copy_(received)


def _as_words(flat: Tensor) -> Tensor:
    """The same on all ranks, whatever the place in memory: else they would give different numbers of elements."""
    if flat.numel() % 8:
        return flat
    return (flat.clone() if flat.data_ptr() % 8 else flat).view(torch.int64)


def exchange(out: Mapping[int, Sequence[Tensor]], into: Mapping[int, Sequence[Tensor]]) -> None:
    """Send tensors in host memory to ranks, and receive as many from others; a collective of those that take part.

    Args:
        out: by the rank that gets them. Where there are none, nothing is sent.
        into: by the rank that sends them, contiguous.
    """
    out, into = ({rank: tensors for rank, tensors in each.items() if tensors} for each in (out, into))
    end, group = torch.zeros(1, dtype=torch.uint8), own_group()
    coming = {rank: [group.recv([each], rank, _DATA) for each in (*tensors, _byte())] for rank, tensors in into.items()}
    answers = {rank: group.recv([_byte()], rank, _ANSWERS) for rank in out}
    going = {rank: [group.send([each], rank, _DATA) for each in (*tensors, end)] for rank, tensors in out.items()}
    for rank, works in coming.items():
        _wait(reversed(works))  # Once the last byte is there, all is.
        answer = _byte()
        keep(answer, group.send([answer], rank, _ANSWERS))
    for rank, work in answers.items():
        _wait([work])
        _wait(going[rank])


def _byte() -> Tensor:
    return torch.zeros(1, dtype=torch.uint8)


def _wait(works: Any) -> None:
    for work in works:
        work.wait(timeout())


def watch_waits(is_broken: Callable[[], bool]) -> None:
    """Let a script's ``work.wait()`` look every second whether the world is broken, and raise :class:`Stuck` then.

    A rank that was stopped, or slow, while a peer came to an ``all_reduce`` and ended waits for its own piece to be
    sent, until the group's timeout, with every socket shut: ``write`` in ``pair.cc`` leaves that piece in ``tx_``, and
    ``signalException`` tells only those whose pieces are elsewhere. Waits within C++, as of the reducer of
    ``DistributedDataParallel``, cannot be interrupted: :class:`~.cutting.Standstill` finds those. NCCL's collectives
    end otherwise, so nothing is done where there are GPUs.

    Args:
        is_broken: whether the present world is.
    """
    if torch.accelerator.is_available() or not dist.is_gloo_available():
        return
    wait = Work.wait

    @wraps(wait)
    def watched(work: Work, *given: Any, **named: Any) -> bool:
        if given or named or not _is_collective(work):
            return wait(work, *given, **named)
        wait_for(work, is_broken)
        return True

    Work.wait = watched  # type: ignore[method-assign, assignment]


def _is_collective(work: Work) -> bool:
    """Not a message to or from one rank: to stop waiting for one is to close its connection."""
    try:
        work.get_future()
    except (RuntimeError, NotImplementedError):
        return False
    return True
