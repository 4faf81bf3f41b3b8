"""Where each thread of a rank stands, written to its stderr when somebody asks: for a training that stands still.

By :mod:`faulthandler`, whose handler runs in C, so that a rank tells it that waits inside Gloo or holds Python's lock.
"""

from __future__ import annotations

import faulthandler
import signal

SIGNAL = signal.SIGURG
"""One that does nothing to a process that has not asked for it: a command that is no Python of ours, or a child that a
rank has started."""
_STDERR = 2


def dump_on_signal() -> None:
    """Answer the signal from now on; what forks off this process does, too. Harmless when repeated."""
    faulthandler.register(SIGNAL, file=_STDERR, all_threads=True)
