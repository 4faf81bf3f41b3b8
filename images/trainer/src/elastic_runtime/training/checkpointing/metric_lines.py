"""All that rank 0 reports, whole, as JSON lines beside the checkpoints; ``docs/observing.md`` has their format."""

from __future__ import annotations

import json
import re
import secrets
import threading
from collections.abc import Callable
from datetime import datetime
from typing import Any

from elastic_runtime.checkpoint.store import CheckpointStore
from elastic_runtime.clock import utc_now
from elastic_runtime.documents import time_to_text
from elastic_runtime.errors import InvalidSettings, StoreUnavailable
from elastic_runtime.logs import script_logger
from elastic_runtime.printable import printable
from elastic_runtime.protocol.rank_link import BatchSize, Metrics, Progress, RankMessage

FOLDER = "metrics"
ROOM = 8 * 1024 * 1024
"""Bytes that are kept for the next file, tens of thousands of lines; what comes then is counted, and left out."""
MOST_FILES = 10_000
"""Files of a run that stay: a week of a durable checkpoint a minute, or years of as many tries."""
LOOK = 100
"""Files of one process from one look at how many there are to the next."""
_AT_ONCE = 150
"""That are deleted then, at most: the next checkpoint waits for it."""
_NAME = re.compile(FOLDER + r"/([0-9]{8,18})-([0-9]{8}T[0-9]{6})-([0-9a-f]{8})-([0-9]{4,9})\.jsonl")
_log = script_logger(__name__)


class MetricLines:
    """Gathers lines in any thread; :meth:`upload` writes those since the last time as one file.

    A name is used by nobody else: it has the owner's fence, when this process began, and a random part.

    Args:
        store: of the checkpoints.
        fence: of the run's owner.
        now: wall clock.
    """

    def __init__(self, store: CheckpointStore, fence: int, now: Callable[[], datetime] = utc_now) -> None:
        self._store, self._now = store, now
        self._prefix = f"{FOLDER}/{fence:08d}-{now():%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"
        self._lock = threading.RLock()  # A signal's handler may come here, too.
        self._lines = bytearray()
        self._left_out = self._number = 0
        self._step: int | None = None
        self._refused = False

    def add(self, message: RankMessage) -> None:
        """Something that the rank tells its agent."""
        match message:
            case Progress(step):
                self._step = step
                self._add({"step": step})
            case Metrics(values, step):
                self._add({"step": self._step if step is None else step, "values": dict(values)})
            case BatchSize(samples):
                self._add({"step": self._step, "samples": samples})

    def upload(self) -> None:
        """Write what there is, by one thread at a time. What a store that is away does not take, it gets the next time.

        Raises nothing that a store may raise: training does not end for it.
        """
        with self._lock:
            count, left_out = len(self._lines), self._left_out
            lines = bytes(self._lines)
        if not lines or self._refused:
            return
        if left_out:
            lines += _line({"left_out": left_out})
        try:
            with self._store.write_file(f"{self._prefix}-{self._number:04d}.jsonl") as stream:
                stream.write(lines)
        except InvalidSettings as error:
            self._refused = True
            _log.warning("metrics are not written beside the checkpoints: %s", printable(error))
            return
        except (StoreUnavailable, OSError) as error:
            _log.warning("metrics are not written yet, training goes on: %s", printable(error))
            return
        self._number += 1
        with self._lock:
            del self._lines[:count]
            self._left_out -= left_out
        if self._number % LOOK == 2:  # Not with the first, which may be that of a rank in haste.
            self._retire()

    def _retire(self) -> None:
        """The oldest, of more than are to stay."""
        try:
            ours = [found for name in self._store.files(FOLDER) if (found := _NAME.fullmatch(name))]
            ours.sort(key=lambda found: (int(found[1]), found[2], found[3], int(found[4])))
            for found in ours[:-MOST_FILES][:_AT_ONCE]:
                self._store.delete_file(found[0])
        except (StoreUnavailable, InvalidSettings, OSError) as error:
            _log.warning("old metrics stay for now: %s", printable(error))

    def _add(self, line: dict[str, Any]) -> None:
        if self._refused:
            return
        data = _line({"time": time_to_text(self._now()), **line})
        with self._lock:
            if len(self._lines) + len(data) <= ROOM:
                self._lines += data
            else:
                self._left_out += 1


def _line(values: dict[str, Any]) -> bytes:
    return json.dumps(values, separators=(",", ":")).encode() + b"\n"
