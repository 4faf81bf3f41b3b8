"""Whether a rank's training thread waits inside torch for what does not come."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import FrameType

import torch

IDLE = 0.01
"""Seconds of the processor's in one of the clock's below which a thread waits."""
_TORCH = f"{Path(torch.__file__).parent}/"
_Place = tuple[int, int]


class Standstill:
    """Of one thread. What it waits for in other code, such as a loader of data, a store or a compiler, is not meant.

    Args:
        thread: its identity, as of :func:`threading.get_ident`.
    """

    def __init__(self, thread: int) -> None:
        self._thread = thread
        self._place: _Place | None = None
        self._since = self._used = 0.0

    def seconds(self) -> float:
        """For which it has, at this look and at all those before that were told more than 0."""
        place, now = self._look(), time.monotonic()
        used = time.clock_gettime(time.pthread_getcpuclockid(self._thread)) if place else 0.0
        if place is None or place != self._place or used - self._used > IDLE * (now - self._since):
            self._place, self._since, self._used = place, now, used
        return now - self._since if place else 0.0

    def _look(self) -> _Place | None:
        frame: FrameType | None = sys._current_frames().get(self._thread)
        if frame is None or not frame.f_code.co_filename.startswith(_TORCH):
            return None
        return id(frame), frame.f_lasti
