"""A process that outlives a warm process, and ends what that one's children leave behind.

The kernel ends forked ranks with their warm process, but not the processes that ranks have started. So whoever kills an
agent, a warm process or a launcher would leave a DataLoader's workers, or a shell's background jobs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import struct
from typing import NoReturn

_GROUP = struct.Struct("i")
"""A process group to be ended; negative: it has ended."""


class Keeper:
    """Forked off a warm process, in a session of its own. It ends soon after the warm process does.

    Args:
        held: a descriptor that stays open until all groups are killed: the other end of a socket so hears nothing of
            the end before.
    """

    def __init__(self, held: int) -> None:
        self._held = held
        self._groups: set[int] = set()
        self.pid = -1
        self._pipe = -1
        self._start()

    def add(self, group: int) -> None:
        """End that process group with this process."""
        self._groups.add(group)
        self._tell(group)

    def remove(self, group: int) -> None:
        """It has ended, and its number may be given to another."""
        self._groups.discard(group)
        self._tell(-group)

    def ended(self, pid: int) -> bool:
        """Whether that child was the keeper. If so, somebody has killed it, and another is there now."""
        if pid != self.pid:
            return False
        os.close(self._pipe)
        self._start()
        return True

    def close_in_child(self) -> None:
        """In a process that was forked since: let go, or that one would hold off the end."""
        os.close(self._pipe)

    def _start(self) -> None:
        read, self._pipe = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _keep(read, self._held)
        os.close(read)
        for group in self._groups:
            self._tell(group)

    def _tell(self, group: int) -> None:
        with contextlib.suppress(BrokenPipeError):  # It was killed; the next one is told.
            os.write(self._pipe, _GROUP.pack(group))


def _keep(pipe: int, held: int) -> NoReturn:
    """Until the other end of the pipe is closed, which is at the warm process' end, however that comes."""
    try:
        os.setsid()  # Not in a group that anybody ends.
        low, high = sorted((pipe, held))
        for first, end in ((0, low), (low + 1, high), (high + 1, os.sysconf("SC_OPEN_MAX"))):
            os.closerange(first, end)
        groups: set[int] = set()
        while told := os.read(pipe, _GROUP.size):  # Writes of this size are not torn.
            (group,) = _GROUP.unpack(told)
            groups.add(group) if group > 0 else groups.discard(-group)
        for group in groups:
            with contextlib.suppress(OSError):
                os.killpg(group, signal.SIGKILL)
    finally:
        os._exit(0)
