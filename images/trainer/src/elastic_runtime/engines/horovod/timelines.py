"""Horovod's timeline, one file for each world of which this process is rank 0.

Upstream starts one file with ``hvd.init``, again at each reset, so that the last world is all that is left. Here
Horovod waits to be told (``DYNAMIC``), and is told of another file after each reset. A timeline that grows beyond
:data:`LIMIT` is stopped until the next world.
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from elastic_runtime.run.observe import TRACES

LIMIT = 64 * 1024 * 1024
"""Bytes of one world's file: some hundred thousand events."""
LOOK = 1.0
"""Seconds between two looks at its size."""
BEGIN = ".begin"
"""Suffix of the file beside it that says when it begins, and with how many ranks: Horovod writes times since then."""


class Timelines:
    """Of this process; does nothing unless ``HOROVOD_TIMELINE`` names a file.

    Args:
        calls: Horovod's module with ``rank``, ``size``, ``start_timeline`` and ``stop_timeline``.
    """

    def __init__(self, calls: Any) -> None:
        self._calls = calls
        path = os.environ.get("HOROVOD_TIMELINE")
        self._path = None if not path or path == "DYNAMIC" else Path(path)
        if self._path:
            os.environ["HOROVOD_TIMELINE"] = "DYNAMIC"
        self._lock = threading.Lock()
        self._over: threading.Event | None = None
        self._generation = 0

    def begin(self) -> None:
        """A world is connected."""
        self._generation += 1
        if not self._path or self._calls.rank() != 0:
            return
        host = os.environ.get("HOROVOD_HOSTNAME", "host")
        path = self._path.with_name(f"{self._path.stem}.{host}.{self._generation}{self._path.suffix}")
        if os.environ.get(TRACES):
            begin = {"time": time.time_ns() // 1000, "size": self._calls.size()}
            path.with_suffix(BEGIN).write_text(json.dumps(begin), encoding="utf-8")
        self._calls.start_timeline(str(path))
        self._over = threading.Event()
        threading.Thread(target=self._watch, args=(path, self._over), name="timeline", daemon=True).start()

    def end(self) -> None:
        """The world is about to be left."""
        with self._lock:
            if self._over and not self._over.is_set():
                self._over.set()
                # Or, with events not written yet, the next start_timeline() replaces a running std::thread: abort.
                self._calls.stop_timeline()

    def _watch(self, path: Path, over: threading.Event) -> None:
        while not over.wait(LOOK):
            try:
                full = path.stat().st_size > LIMIT
            except OSError:  # Horovod makes it in a thread of its own.
                continue
            with self._lock:
                if full and not over.is_set():
                    over.set()
                    self._calls.stop_timeline()
