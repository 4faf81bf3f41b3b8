"""The sockets of a broken world are shut down until its rank has noticed; one that cannot notice says so."""

from __future__ import annotations

import faulthandler
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.distributed import distributed_c10d, utils

from elastic_runtime.logs import script_logger
from elastic_runtime.script.frames import frame_of

LOOK = 0.5
"""Seconds between two cuts: a connection may be made, or a collective begin, just after one."""
LONG = 15.0
"""Seconds after which the rank says where it stands; and for which one that hangs has stood there."""
IDLE = 0.01
"""Share of a processor below which a thread waits."""
_STDERR = 2
_TORCH = f"{Path(torch.__file__).parent}/"
_COLLECTIVES = (distributed_c10d.__file__, utils.__file__)
"""Where collectives are called, and DistributedDataParallel's first ones, but nothing is computed."""
_Place = tuple[int, int, bool]
"""A frame, the instruction there, and whether it is a collective's."""
log = script_logger(__name__)


class Cutting:
    """Cutter of this process's sockets.

    Args:
        cut: shuts down whatever sockets there are; from any thread.
        standing: begins to tell for how many seconds the rank has stood still.
        hung: called at each look once that was long.
        look: seconds.
        long: seconds.
    """

    def __init__(
        self,
        cut: Callable[[], None],
        standing: Callable[[], Callable[[], float]],
        hung: Callable[[], None],
        look: float = LOOK,
        long: float = LONG,
    ) -> None:
        self._cut, self._standing, self._hung, self._look, self._long = cut, standing, hung, look, long
        self._lock = threading.Lock()
        self._going: tuple[threading.Thread, threading.Event] | None = None

    def begin(self) -> None:
        """The present world is broken; in any thread."""
        self._cut()
        with self._lock:
            if self._going is None:
                left = threading.Event()
                thread = threading.Thread(target=self._go_on, args=(left,), daemon=True, name="broken world")
                self._going = thread, left
                thread.start()

    def end(self) -> None:
        """This rank knows. Nothing is cut any more when this returns."""
        with self._lock:
            going, self._going = self._going, None
        if going is not None:
            thread, left = going
            left.set()
            thread.join()

    def _go_on(self, left: threading.Event) -> None:
        since, told, hung, stood = time.monotonic(), False, False, self._standing()
        while not left.wait(self._look):
            self._cut()
            if not hung and stood() > self._long:
                hung = True
                log.error("this rank waits inside torch for a world that is broken, and nothing ends that")
            if hung:
                self._hung()
            if not told and time.monotonic() - since > self._long:
                told = True
                log.warning("the world is broken for %.0f s, and this rank has not left it; it stands at:", self._long)
                faulthandler.dump_traceback(_STDERR)


class Standstill:
    """How long one thread has waited inside torch. Waits in other code, such as a data loader or a store, do not count.

    One that uses a processor computes, and does not wait, unless it is inside a collective: NCCL waits in a loop while
    it makes a communicator.

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
        works = place is not None and not place[2] and used - self._used > IDLE * (now - self._since)
        if place is None or place != self._place or works:
            self._place, self._since, self._used = place, now, used
        return now - self._since if place else 0.0

    def _look(self) -> _Place | None:
        with frame_of(self._thread) as frame:
            if frame is None or not frame.f_code.co_filename.startswith(_TORCH):
                return None
            return id(frame), frame.f_lasti, frame.f_code.co_filename in _COLLECTIVES
