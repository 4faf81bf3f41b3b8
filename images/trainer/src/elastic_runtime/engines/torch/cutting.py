"""The sockets of a broken world are shut down until its rank has noticed; one that cannot notice says so."""

from __future__ import annotations

import faulthandler
import logging
import threading
import time
from collections.abc import Callable

LOOK = 0.5
"""Seconds between two cuts: a connection may be made, or a collective begin, just after one."""
LONG = 15.0
"""Seconds after which the rank says where it stands; and for which one that hangs has stood there."""
_STDERR = 2
log = logging.getLogger(__name__)


class Cutting:
    """Of this process.

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
