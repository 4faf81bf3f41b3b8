"""Where each thread of a rank stands, written to its stderr when somebody asks: for a training that stands still.

By :mod:`faulthandler`. A rank that can, writes them itself, with Python's lock. Its handler of a signal runs in C, so
that a rank writes them, too, that holds the lock for good. But it looks at frames that another thread may change at the
same time, which ends the process now and then (Python 3.11).
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal

SIGNAL = signal.SIGURG
"""One that does nothing to a process that has not asked for it: a command that is no Python of ours, or a child that a
rank has started."""
_STDERR = 2


def dump_on_signal() -> None:
    """Answer the signal from now on; what forks off this process does, too. Harmless when repeated."""
    faulthandler.register(SIGNAL, file=_STDERR, all_threads=True)


def write_stacks() -> None:
    """Write those of this process, and have its children write theirs."""
    faulthandler.dump_traceback(_STDERR)
    registered: object = faulthandler.unregister(SIGNAL)  # type: ignore[func-returns-value]  # it returns a bool
    if registered:  # It was, and this process ignores the signal now.
        with contextlib.suppress(OSError):
            os.killpg(os.getpgrp(), SIGNAL)
        dump_on_signal()
