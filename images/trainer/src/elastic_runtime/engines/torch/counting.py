"""Counts the collectives that this rank begins with all others, and tells messages between two ranks from them.

c10d numbers what a process group begins, also in C++, as the reducer of ``DistributedDataParallel`` does; Gloo numbers
messages between ranks with it. What Python begins is seen here with its kind. Subgroups are not counted: which ranks
use them, and how often, is up to the script.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

from torch.distributed import distributed_c10d
from torch.distributed.algorithms.join import Join
from torch.distributed.distributed_c10d import ProcessGroup

from elastic_runtime.script.standing import ledger

_ALIKE = {
    "allreduce": "all_reduce",
    "broadcast": "broadcast",
    "_allgather_base": "all_gather_into_tensor",
    "all_gather_single": "all_gather_into_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
}
"""Methods of a process group, as scripts name them, whose first tensor has the same type and size on all ranks."""
_OTHERS = {
    "reduce": "reduce",
    "allgather": "all_gather",
    "gather": "gather",
    "scatter": "scatter",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "all_to_all_single": "all_to_all",
    "barrier": "barrier",
}
_MESSAGES = ("send", "recv", "recv_anysource", "monitored_barrier")
"""What ranks do unequally often."""
_Method = Callable[..., Any]
_aside = 0
"""What the present default group has numbered for these."""


@cache
def watch_collectives() -> None:
    """Count from now on."""
    counts = ledger().counts
    counts.total, counts.ordered = _begun, True
    for method, name in (_ALIKE | _OTHERS).items():
        _wrap(method, _counted(name, sized=method in _ALIKE))
    for method in _MESSAGES:
        _wrap(method, _set_aside)
    enter: _Method = Join.__enter__

    @wraps(enter)
    def joins(join: Join) -> Any:
        counts.may_differ()
        return enter(join)

    Join.__enter__ = joins  # type: ignore[method-assign]


def connected() -> None:
    """A new default group is connected."""
    global _aside
    _aside = 0
    ledger().counts.connected()


def _wrap(name: str, wrapper: Callable[[_Method], _Method]) -> None:
    if (method := getattr(ProcessGroup, name, None)) is not None:
        setattr(ProcessGroup, name, wraps(method)(wrapper(method)))


def _counted(name: str, *, sized: bool) -> Callable[[_Method], _Method]:
    begins, world = ledger().counts.begins, distributed_c10d._world

    def wrapper(method: _Method) -> _Method:
        def counted(group: Any, *args: Any, **kwargs: Any) -> Any:
            if group is world.default_pg:
                tensor: Any = args[0] if sized and args else None
                if isinstance(tensor, list):
                    tensor = tensor[0] if tensor else None
                if tensor is None:
                    begins(name)
                else:
                    begins(name, tensor.dtype, tensor.numel())
            return method(group, *args, **kwargs)

        return counted

    return wrapper


def _set_aside(method: _Method) -> _Method:
    def message(group: Any, *args: Any, **kwargs: Any) -> Any:
        global _aside
        before = _numbered() or 0
        try:
            return method(group, *args, **kwargs)
        finally:
            _aside += (_numbered() or 0) - before

    return message


def _numbered() -> int | None:
    group: Any = distributed_c10d._world.default_pg
    try:
        return None if group is None else int(group._get_sequence_number_for_group())
    except RuntimeError:  # A backend that does not number, or a group that is being taken down.
        return None


def _begun() -> int | None:
    numbered = _numbered()
    return None if numbered is None else numbered - _aside
