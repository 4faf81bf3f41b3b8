"""Busy loops beside the rounds, since races show on a machine that has other things to do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_LOOP = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): pass"
"""Ends with whoever has started it, however that ends."""


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """So many processes that do nothing as fast as they can."""
    loops = [subprocess.Popen([sys.executable, "-c", _LOOP, str(os.getpid())]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
