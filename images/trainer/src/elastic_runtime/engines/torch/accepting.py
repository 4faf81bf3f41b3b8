"""Whether Gloo's thread accepts who connects: its listeners stay open as long as a group, which needs them no more.

Gloo keeps the descriptor of a peer that connects and resets before it says anything, and ends the process when it can
accept nobody. So once a group stands, the listener is taken out of what Gloo's thread waits for: who connects then
waits in the kernel, in a queue that has an end.
"""

from __future__ import annotations

import ctypes
import os
import re
import select
from collections.abc import Iterator, Mapping
from pathlib import Path

from elastic_runtime.engines.gloo_sockets import borrowed, still_open, unless_gone

_WATCHED = re.compile(rb"^tfd:\s*(\d+) events:\s*([0-9a-f]+) data:\s*([0-9a-f]+)", re.MULTILINE)
_MODIFY = 3
"""EPOLL_CTL_MOD of Linux's eventpoll.h, which Python has no way to use with the data of somebody else."""


class _Event(ctypes.Structure):
    """``struct epoll_event``, of epoll_ctl(2); packed on x86-64 alone."""

    if os.uname().machine == "x86_64":
        _pack_ = 1
    _fields_ = (("events", ctypes.c_uint32), ("data", ctypes.c_uint64))


def set_accepting(listening: Mapping[int, str], *, accept: bool) -> bool:
    """Have Gloo accept from these listeners, or not; what it is to know of them stays as it is.

    Args:
        listening: as :func:`~elastic_runtime.engines.gloo_sockets.open_sockets` has them.
        accept: whether it accepts.

    Returns:
        Whether all that are still open are as wanted. Not every kernel tells what is waited for.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    left = dict(listening)
    for poll, descriptor, data in _watched():
        name = listening.get(descriptor)
        if name is None:
            continue
        with unless_gone(), borrowed(descriptor, name):  # Not closed meanwhile: the number is the listener's own.
            event = _Event(select.EPOLLIN if accept else 0, data)
            if libc.epoll_ctl(poll, _MODIFY, descriptor, ctypes.byref(event)) == 0:
                left.pop(descriptor, None)
    return not still_open(left)


def _watched() -> Iterator[tuple[int, int, int]]:
    """Each epoll descriptor of this process, what it watches, and the data of that."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}") == "anon_inode:[eventpoll]":
                for watched in _WATCHED.finditer(Path(f"/proc/self/fdinfo/{name}").read_bytes()):
                    yield int(name), int(watched[1]), int(watched[3], 16)
        except FileNotFoundError:
            continue
