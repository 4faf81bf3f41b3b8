"""Has a process vanish as if its machine had lost power: no connection is ended, nothing is answered any more."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
from pathlib import Path

_PIDFD_GETFD = 438
"""Number of the system call, the same on every architecture (Linux 5.6)."""
_SO_ATTACH_FILTER = 26


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(_Instruction)))


_RETURN_NOTHING = _Instruction(0x06, 0, 0, 0)
"""Classic BPF, ``ret 0``: the kernel drops every packet that comes, before it is acknowledged."""


def vanish(pid: int) -> None:
    """Stop a process, and leave its TCP connections without an answer.

    The stopped process sends nothing of its own, and a filter on its sockets keeps the kernel from answering for it.
    """
    os.kill(pid, signal.SIGSTOP)
    libc = ctypes.CDLL(None, use_errno=True)
    process = os.pidfd_open(pid)
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            if not _is_socket(Path(f"/proc/{pid}/fd/{name}")):
                continue
            copy = libc.syscall(_PIDFD_GETFD, process, int(name), 0)
            if copy < 0:
                raise OSError(ctypes.get_errno(), f"cannot take descriptor {name} of process {pid}")
            with socket.socket(fileno=copy) as sock:
                if sock.family == socket.AF_INET and sock.type == socket.SOCK_STREAM:
                    program = _Program(1, ctypes.pointer(_RETURN_NOTHING))
                    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, bytes(program))
    finally:
        os.close(process)


def _is_socket(link: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.readlink(link).startswith("socket:")
    return False
