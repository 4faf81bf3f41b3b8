"""Threads take turns sooner while a checkpoint is written beside the training.

A thread that needs Python's interpreter asks the one that has it to let go after ``sys.getswitchinterval()``, 5 ms.
A commit that meets the writing thread would stand as long: ten times what a small model's checkpoint costs otherwise.
"""

from __future__ import annotations

import sys
import threading

SOON = 0.0001
"""Seconds after which a thread that needs the interpreter asks for it."""
_HALF = 0.5e-6
"""Python cuts the interval to whole microseconds, and 5e-05 to 49 of them: half of one more makes it 50."""


class SwitchInterval:
    """Between :meth:`begin` and :meth:`end`, which may be called in different threads; several may overlap."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun = 0
        self._before = SOON

    def begin(self) -> None:
        """Turns are quick from now on; they stay as they are where the script has made them quicker."""
        with self._lock:
            if self._begun == 0:
                self._before = sys.getswitchinterval()
                if self._before > SOON:
                    sys.setswitchinterval(SOON + _HALF)
            self._begun += 1

    def end(self) -> None:
        """After the last one that has begun: turns are as before."""
        with self._lock:
            self._begun -= 1
            if self._begun == 0:
                sys.setswitchinterval(self._before + _HALF)


switch_interval = SwitchInterval()
"""The process's own, as the interval is."""
