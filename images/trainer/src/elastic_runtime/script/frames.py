"""The frames of another thread, looked at without harm.

Making a frame's object may start a garbage collection in Python 3.11. What that frees may let other threads run, so the
frame may be over, and its memory used again, when the object is made of it: the process ends by SIGSEGV.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
from collections.abc import Iterator
from types import FrameType

_looking = threading.Lock()
# A fork in the middle of a look would leave its child without collections, and with the lock held.
os.register_at_fork(before=_looking.acquire, after_in_parent=_looking.release, after_in_child=_looking.release)


@contextlib.contextmanager
def frame_of(thread: int | None) -> Iterator[FrameType | None]:
    """Yield the innermost frame of a thread, to be followed within the block, where no garbage is collected.

    Args:
        thread: its identifier, for Python. If there is no such thread, this yields None.
    """
    with _looking:
        enabled = gc.isenabled()
        gc.disable()
        try:
            yield sys._current_frames().get(thread or 0)
        finally:
            if enabled:
                gc.enable()
