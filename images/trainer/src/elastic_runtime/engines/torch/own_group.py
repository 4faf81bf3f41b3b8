"""The process group of this package's own collectives, which cannot be paired with those of the script.

A script's collective may be in flight on another thread, or on some ranks alone, while the state is synchronized or
compared. In one group, c10d pairs collectives by the order in which each rank begins them. So there are two: the
default group is the script's. The other is known to nobody: torch lists it nowhere, and counts and names the script's
groups as without it.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections import deque
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, Store
from torch.distributed.distributed_c10d import _get_default_store

from elastic_runtime.run.waits import LONGEST_COLLECTIVE

CONNECTING = timedelta(seconds=30)
"""For which a rank waits for the others of its world while they connect."""
COLLECTIVE_TIMEOUT = timedelta(minutes=10)
"""For which a rank without a state waits for others that are there, but do not come: the launcher does not look."""
WATCHED_TIMEOUT = timedelta(seconds=LONGEST_COLLECTIVE)
"""The same of a rank with a state, or that loads it."""
AT_EXIT = 5.0
"""Seconds for which a process that ends waits for its groups' ends."""
_MOST_SENDING = 1000
_PREFIX = "elastic_runtime/own"
"""Of its keys in the world's store."""


class _Present:
    """The current group of this process."""

    def __init__(self) -> None:
        self.group: ProcessGroupGloo | None = None
        self.store: Store | None = None
        """Of its default group, which nobody holds here, or it would not end."""
        self.timeout = COLLECTIVE_TIMEOUT
        self.sending: deque[Any] = deque(maxlen=_MOST_SENDING)
        """Collectives that :func:`keep` holds until they end."""

    def taken(self) -> list[Any]:
        """Everything, for a last reference to it."""
        taken = [self.group, *self.sending]
        self.group, self.store = None, None
        self.sending.clear()
        return taken


_present = _Present()
_ends: deque[threading.Thread] = deque(maxlen=10)


def own_group() -> Any:
    """Return our group of the present world. A collective if there was no :func:`connect`, as by hand.

    Returns:
        A bare ``ProcessGroupGloo``: its methods, which torch's stubs do not have, take lists of tensors in host memory,
        and return ``Work``.
    """
    store = _get_default_store()
    if _present.group is None or _present.store is not store:
        connect(store, dist.get_rank(), dist.get_world_size())
    return _present.group


def connect(store: Store, rank: int, size: int) -> None:
    """Make it, after the default group: a rank can tell who comes to which group while it makes one at a time.

    Args:
        store: that the default group is made with.
        rank: of this process.
        size: of the world.
    """
    _present.taken()
    _present.group, _present.store = _made(store, rank, size), _get_default_store()


def set_timeout(timeout: timedelta) -> None:
    """Let collectives of this group wait for so long, in this world and the next ones."""
    _present.timeout = timeout
    if _present.group is not None:
        _present.group._set_default_timeout(timeout)


def timeout() -> timedelta:
    """Return what :func:`set_timeout` has set; :data:`COLLECTIVE_TIMEOUT` at first."""
    return _present.timeout


def keep(*sending: Any) -> None:
    """Keep the work of a message that is not waited for: Gloo closes a connection if it is dropped before sending.

    They keep the group's connections and threads, too, so they are forgotten with it.
    """
    _present.sending.append(sending)


def let_go() -> None:
    """Its world is over. Gloo takes 20 ms to close its connections, for which nobody waits but a process that ends."""
    held = _present.taken()
    thread = threading.Thread(target=held.clear, name="own-group-ends", daemon=True)
    thread.start()
    _ends.append(thread)


def _wait_for_ends() -> None:
    """An interpreter that ends unwinds a thread that comes back from C++, and what is noexcept there aborts."""
    deadline = time.monotonic() + AT_EXIT
    for thread in _ends:
        thread.join(max(deadline - time.monotonic(), 0))


def _made(store: Store, rank: int, size: int) -> ProcessGroupGloo:
    group = ProcessGroupGloo(PrefixStore(_PREFIX, store), rank, size, CONNECTING)
    group._set_default_timeout(_present.timeout)
    return group


atexit.register(_wait_for_ends)
