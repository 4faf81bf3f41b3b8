"""Counts the collectives that this rank begins with all others, and tells messages between two ranks from them.

c10d numbers what a process group begins, also in C++, as the reducer of ``DistributedDataParallel`` does; Gloo numbers
messages between ranks with it. What Python begins is seen here with its kind. Only groups that hold all ranks of the
world count: which ranks use smaller ones, and how often, is up to the script.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any
from weakref import WeakKeyDictionary

from torch.distributed import distributed_c10d
from torch.distributed.algorithms.join import Join
from torch.distributed.distributed_c10d import ProcessGroup

from elastic_runtime.script.standing import ledger

_ALIKE = {
    "allreduce": "all_reduce",
    "reduce": "reduce",
    "broadcast": "broadcast",
    "allgather": "all_gather",
    "_allgather_base": "all_gather_into_tensor",
    "all_gather_single": "all_gather_into_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
}
"""Methods of a process group, as scripts name them, whose first tensor has the same type and size on all ranks."""
_OTHERS = {
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
_NAME = 12
"""Characters of a group's name that are told: it may be a digest."""
_Method = Callable[..., Any]
_aside: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
"""What each group has numbered for these."""


@cache
def watch_collectives() -> None:
    """Count from now on."""
    counts = ledger().counts
    counts.total, counts.beside, counts.ordered = _begun, _beside, True
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
    ledger().counts.connected()


def _wrap(name: str, wrapper: Callable[[_Method], _Method]) -> None:
    if (method := getattr(ProcessGroup, name, None)) is not None:
        setattr(ProcessGroup, name, wraps(method)(wrapper(method)))


def _counted(name: str, *, sized: bool) -> Callable[[_Method], _Method]:
    begins, world = ledger().counts.begins, distributed_c10d._world

    def wrapper(method: _Method) -> _Method:
        def counted(group: Any, *args: Any, **kwargs: Any) -> Any:
            usual = group is world.default_pg
            if usual or _is_of_all(group):
                tensor: Any = args[0] if sized and args else None
                while isinstance(tensor, list):
                    tensor = tensor[0] if tensor else None
                among = "" if usual else str(group.group_name)[:_NAME]
                if tensor is None:
                    begins(among, name)
                else:
                    begins(among, name, tensor.dtype, tensor.numel())
            return method(group, *args, **kwargs)

        return counted

    return wrapper


def _set_aside(method: _Method) -> _Method:
    def message(group: Any, *args: Any, **kwargs: Any) -> Any:
        before = _numbered(group) or 0
        try:
            return method(group, *args, **kwargs)
        finally:
            _aside[group] = _aside.get(group, 0) + (_numbered(group) or 0) - before

    return message


def _is_of_all(group: Any) -> bool:
    """Whether it is a group of the script that holds all ranks."""
    world = distributed_c10d._world
    usual: Any = world.default_pg
    return usual is not None and group in world.pg_map and group.size() == usual.size()


def _numbered(group: Any) -> int | None:
    try:
        return int(group._get_sequence_number_for_group())
    except RuntimeError:  # A backend that does not number, or a group that is being taken down.
        return None


def _begun() -> int | None:
    group: Any = distributed_c10d._world.default_pg
    return None if group is None else _counted_in(group)


def _beside() -> int:
    world = distributed_c10d._world
    others = [group for group in list(world.pg_map) if group is not world.default_pg and _is_of_all(group)]
    return sum(_counted_in(group) or 0 for group in others)


def _counted_in(group: Any) -> int | None:
    numbered = _numbered(group)
    return None if numbered is None else numbered - _aside.get(group, 0)
