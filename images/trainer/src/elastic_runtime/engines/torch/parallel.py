"""``DistributedDataParallel`` in a process that goes from one process group to another.

Its reducer, with its hooks in the parameters' gradients, belongs to one process group. What torch has for another one
(``_update_process_group``) aborts a survivor next to a newcomer, since the survivor's buckets were rebuilt after its
first step and the newcomer's were not. So the hooks are removed when a world is left, and wrappers are made anew, as
the same objects, by all ranks in the next: those that the script made before its training function, and where that goes
on in place, those that it has made since, as a newcomer makes them in its beginning. They send their parameters where
not all ranks have the same already. What the script has put on them stays: hooks, and whether they train. Communication
hooks must not have a state that changes, since a newcomer's would be another one.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from elastic_runtime.engines.torch.sending import maximum
from elastic_runtime.errors import InvalidSettings
from elastic_runtime.training.state.fingerprint import number_of

_Made = weakref.WeakKeyDictionary[DistributedDataParallel, tuple[tuple[Any, ...], dict[str, Any]]]
"""With the arguments beside the module, in the order in which they were made."""

_ARGUMENTS = inspect.signature(DistributedDataParallel.__init__)
_CONTENT = frozenset({"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"})
_KEPT = tuple(name for name in vars(nn.Module()) if name not in _CONTENT)
"""Attributes of a module that hold its hooks, and whether it trains."""
_USUAL_GROUP = object()
"""In the place of a world's process group as the state of a hook."""


class Wrappers:
    """Wrappers of this process.

    Args:
        is_broken: whether the present world is.
    """

    def __init__(self, is_broken: Callable[[], bool]) -> None:
        self._is_broken = is_broken
        self._before: _Made = weakref.WeakKeyDictionary()
        self._within: _Made = weakref.WeakKeyDictionary()
        self._in_training = self._stays = self._makes = False
        self._states: list[object] = []
        """Those that may change, of hooks that the script has registered before its training function; without that, no
        world changes."""
        self._init: Any = None

    def watch(self) -> None:
        """From now on wrappers are known; the second time nothing."""
        if self._init is not None:
            return
        init = self._init = DistributedDataParallel.__init__

        @functools.wraps(init)
        def made(wrapper: DistributedDataParallel, module: Any, *args: Any, **kwargs: Any) -> None:
            self._make(wrapper, module, args, kwargs, has_same=False)
            (self._within if self._in_training else self._before)[wrapper] = args, kwargs

        DistributedDataParallel.__init__ = made  # type: ignore[method-assign, assignment]
        register = DistributedDataParallel.register_comm_hook

        @functools.wraps(register)
        def registered(wrapper: DistributedDataParallel, state: object, hook: Callable[..., Any]) -> None:
            if not self._makes and self._stays and wrapper in self._within:
                _check_fixed(state)
            elif not self._makes and wrapper in self._before and not _is_fixed(state):
                self._states.append(state)
            register(wrapper, state, hook)

        DistributedDataParallel.register_comm_hook = registered  # type: ignore[method-assign, assignment]

    @contextmanager
    def in_training(self, *, in_place: bool = False) -> Iterator[None]:
        """Around a call of the training function: what it makes belongs to that call.

        Args:
            in_place: it goes on in the next world, with what it has made.

        Raises:
            InvalidSettings: a communication hook of one that was made before has a state that may change.
        """
        states, self._states = self._states, []
        for state in states:
            _check_fixed(state)
        self._within.clear()
        self._in_training, self._stays = True, in_place
        try:
            yield
        finally:
            self._in_training = False

    def release(self) -> None:
        """Before a process group is given up."""
        usual = distributed_c10d._world.default_pg
        for wrapper in [*self._before, *self._within]:
            wrapper._remove_autograd_hooks()  # type: ignore[no-untyped-call]
            if usual is not None:
                hooks = wrapper._comm_hooks
                wrapper._comm_hooks = [(hook, _USUAL_GROUP if state is usual else state) for hook, state in hooks]

    def rebuild(self, *, has_same: bool) -> None:
        """In a new process group, those that were made before the training function; a collective.

        Args:
            has_same: all ranks have the same parameters already, so that rank 0's need not be sent.
        """
        self._make_anew(self._before, has_same)

    def rebuild_within(self, *, has_same: bool) -> None:
        """Once the state is in sync, those that the training function has made, which goes on; a collective."""
        self._make_anew(self._within, has_same)

    def _make_anew(self, made: _Made, has_same: bool) -> None:
        for wrapper, (args, kwargs) in list(made.items()):
            kept, hooks = {name: vars(wrapper)[name] for name in _KEPT}, wrapper._comm_hooks
            is_made = False
            try:
                self._make(wrapper, wrapper.module, args, kwargs, has_same)
                is_made = True
            finally:
                vars(wrapper).update(kept)  # The same dicts: handles of hooks refer to them.
                if not is_made:  # Another world follows.
                    wrapper._comm_hooks = hooks
            for hook, state in hooks[len(wrapper._comm_hooks) :]:  # What mixed precision needs, it has registered.
                wrapper.register_comm_hook(distributed_c10d._world.default_pg if state is _USUAL_GROUP else state, hook)

    def _make(
        self,
        wrapper: DistributedDataParallel,
        module: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        has_same: bool,
    ) -> None:
        """In the same way by whoever makes it for the first time and by those who make it anew beside that rank."""
        given = _ARGUMENTS.bind(wrapper, module, *args, **kwargs)
        said = given.arguments
        sends = not has_same and said.get("init_sync", True)
        if sends and dist.is_initialized() and not (said.get("process_group") or said.get("device_mesh")):
            sends = not alike(module, self._maximum)
        said["init_sync"] = sends
        self._makes = True
        try:
            self._init(*given.args, **given.kwargs)
        finally:
            self._makes = False

    def _maximum(self, numbers: Sequence[float]) -> list[float]:
        return maximum(numbers, self._is_broken)


def _is_fixed(state: object) -> bool:
    """Whether a communication hook's state is known not to change, or is the usual process group."""
    usual = distributed_c10d._world.default_pg
    return state is None or state is usual or isinstance(state, bool | int | float | str)


def _check_fixed(state: object) -> None:
    """Refuse a communication hook's state that a new rank would not have.

    Args:
        state: of a hook of a wrapper that goes on in the next world.

    Raises:
        InvalidSettings: it may change, or is a process group other than the usual one.
    """
    if _is_fixed(state):
        return
    problem = f"the hook's state, a {type(state).__qualname__}, would differ between new ranks and the others"
    remedy = "Make DistributedDataParallel in a function under elastic.run without in_place=True, or use another hook"
    raise InvalidSettings("DistributedDataParallel.register_comm_hook", problem, remedy)


# Whether all ranks have the same module already, so that ``DistributedDataParallel`` need not send it.
#
# A newcomer makes its wrapper just after the state was sent to it, and the wrapper would send the parameters again,
# for which everybody waits.


def alike(module: nn.Module, maximum: Callable[[Sequence[float]], list[float]]) -> bool:
    """Whether parameters and buffers are equal on all ranks, but for one chance in 2**52; a collective.

    Args:
        module: of any tensors; with others than plain ones it is not alike.
        maximum: of each number over all ranks, the same on all of them.
    """
    named = list(itertools.chain(module.named_parameters(), module.named_buffers()))
    mine: float | None = None
    if all(_is_plain(tensor) for _, tensor in named):
        # Not above: importing that package first imports this engine.
        from elastic_runtime.torch.digests import digests

        found = digests([tensor for _, tensor in named])
        mine = float(number_of([(name, digest) for (name, _), digest in zip(named, found, strict=True)]))
    greatest, least = maximum([mine, -mine] if mine is not None else [1.0, 1.0])
    return greatest == -least


def _is_plain(tensor: Tensor) -> bool:
    is_known = type(tensor) in (Tensor, nn.Parameter)
    return is_known and tensor.layout == torch.strided and tensor.device.type != "meta"
