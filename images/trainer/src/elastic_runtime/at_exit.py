"""A last word of this process, not of its forks."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable


class AtExit:
    """Have a function called when the process ends that has asked for it.

    A fork inherits Python's hooks. But what its parent is to finish there, a checkpoint or a connection, is its
    parent's still, and the threads that may hold its locks are not in the fork. One that uses it itself asks anew.

    Args:
        function: raises nothing.
    """

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function
        self._process = 0
        """That has asked. 0: none, or it was called."""

    def ask(self) -> None:
        """Have it called; also repeatedly, for a process may be another one than before."""
        if self._process == (process := os.getpid()):
            return
        self.cancel()
        self._process = process
        atexit.register(self._run)

    def cancel(self) -> None:
        """Forget it."""
        self._process = 0
        atexit.unregister(self._run)

    def _run(self) -> None:
        if self._process == os.getpid():
            self._process = 0
            self._function()
