"""A last word of this process, not of its forks."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from typing import Any


class AtExit:
    """Have a function called when the process ends that has asked for it.

    A fork inherits Python's hooks. But what its parent is to finish there, a checkpoint or a connection, is its
    parent's still, and the threads that may hold its locks are not in the fork. One that uses it itself asks anew.

    A child of multiprocessing that is not spawned ends without those hooks, and calls multiprocessing's finalizers.
    These come before the end of its threads, so what must not be finished for them is left out there.

    Args:
        function: raises nothing.
        of_finalizers: it is one in such a child. Else nothing is called there.
    """

    def __init__(self, function: Callable[[], None], *, of_finalizers: bool = True) -> None:
        self._function, self._of_finalizers = function, of_finalizers
        self._finalizer: Any = None
        self._process = 0
        """That has asked. 0: none, or it was called."""

    def ask(self) -> None:
        """Have it called; also repeatedly, for a process may be another one than before."""
        if self._process == (process := os.getpid()):
            return
        self.cancel()
        self._process = process
        atexit.register(self._run)
        if self._of_finalizers and _ends_by_finalizers():
            from multiprocessing.util import Finalize

            self._finalizer = Finalize(None, self._run, exitpriority=0)

    def cancel(self) -> None:
        """Forget it."""
        self._process = 0
        atexit.unregister(self._run)
        finalizer, self._finalizer = self._finalizer, None
        if finalizer is not None:
            finalizer.cancel()

    def _run(self) -> None:
        if self._process == os.getpid():
            self._process = 0
            self._function()


def _ends_by_finalizers() -> bool:
    process = sys.modules.get("multiprocessing.process")  # Which such a child has imported.
    if process is None or process.parent_process() is None:
        return False
    from multiprocessing import get_start_method

    return get_start_method() != "spawn"
