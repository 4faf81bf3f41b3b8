"""``DistributedDataParallel`` in a process that goes from one process group to another.

Its reducer, with its hooks in the parameters' gradients, belongs to one process group. What torch has for another one
(``_update_process_group``) aborts a survivor next to a newcomer, since the survivor's buckets were rebuilt after its
first step and the newcomer's were not. So the hooks are removed when a world is left, and those wrappers that the
script made before its training function are made anew, as the same objects, by all ranks in the next.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

from torch.nn.parallel import DistributedDataParallel


class Wrappers:
    """Of this process."""

    def __init__(self) -> None:
        self._made: weakref.WeakKeyDictionary[DistributedDataParallel, tuple[tuple[Any, ...], dict[str, Any]]]
        self._made = weakref.WeakKeyDictionary()
        self._passing: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()
        self.in_training = False
        """Whether the training function runs: it is called in each world anew, and makes its wrappers there."""
        self._init: Any = None

    def watch(self) -> None:
        """From now on wrappers are known; the second time nothing."""
        if self._init is not None:
            return
        init = self._init = DistributedDataParallel.__init__

        @functools.wraps(init)
        def made(wrapper: DistributedDataParallel, module: Any, *args: Any, **kwargs: Any) -> None:
            init(wrapper, module, *args, **kwargs)
            if self.in_training:
                self._passing.add(wrapper)
            else:
                self._made[wrapper] = args, kwargs

        DistributedDataParallel.__init__ = made  # type: ignore[method-assign, assignment]

    def release(self) -> None:
        """Before a process group is given up."""
        for wrapper in [*self._made, *self._passing]:
            wrapper._remove_autograd_hooks()  # type: ignore[no-untyped-call]
        self._passing.clear()

    def rebuild(self) -> None:
        """In a new process group; a collective."""
        for wrapper, (args, kwargs) in list(self._made.items()):
            self._init(wrapper, wrapper.module, *args, **kwargs)
