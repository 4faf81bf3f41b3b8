"""The ranks' output in the run's log: ``TIME WORKER [RANK]<stdout>: LINE``.

The log grows up to a limit, so that a script that writes without end cannot fill the disk that the status is on. It is
never cut or begun anew, since whoever follows it knows its place by the bytes before it: beyond the limit, lines are
left out, and the newest of them are written when the run ends. The launcher's own lines are few, and always written.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from datetime import datetime
from typing import TextIO

from elastic_runtime.documents import time_to_text
from elastic_runtime.pace import RateLimitedLog
from elastic_runtime.printable import printable
from elastic_runtime.run.spec import LOG_LIMIT

log = logging.getLogger(__name__)

LINE = 64 * 1024
"""Characters of one line; agents send no longer ones."""
LAST_LINES = 5
"""Lines of stderr kept for the reason of a failure."""
LAST_LINE_LENGTH = 300
TAIL, TAIL_LINE = 200, 1000
"""Lines beyond the limit that are kept for the end, and characters of each."""


class OutputLog:
    """Write the ranks' output to the run's log. A write error loses lines, and has no other effect.

    Args:
        stream: text, written line by line.
        limit: bytes of the ranks' lines.
    """

    def __init__(self, stream: TextIO, limit: int = LOG_LIMIT) -> None:
        self._stream, self._limit = stream, limit
        self._room = limit
        self.lines = 0
        """That ranks have written so far."""
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._tail: deque[str] = deque(maxlen=TAIL)
        self._beyond = self._lost = 0
        self._limited_log = RateLimitedLog(log)

    def write(self, time: datetime, worker: str, rank: int | None, stream: str, lines: Iterable[str]) -> None:
        """Write what one rank wrote; a rank that never was in a world is ``[?]``."""
        prefix = f"{time_to_text(time)} {worker} [{'?' if rank is None else rank}]<{stream}>: "
        shown = [printable(line, LINE) for line in lines]
        self.lines += len(shown)
        if stream == "stderr":
            self._last.extend(line[:LAST_LINE_LENGTH] for line in shown if line.strip())
        if self._room > 0:
            self._put([f"{prefix}{line}\n" for line in shown])
            return
        self._beyond += len(shown)
        self._tail.extend(f"{prefix}{line[:TAIL_LINE]}\n" for line in shown[-TAIL:])

    def last_error(self) -> str:
        """The last lines that any rank wrote to stderr."""
        return " | ".join(self._last)

    def end(self) -> None:
        """Nothing more will be written: the newest of what was left out."""
        if self._beyond:
            log.warning("%d lines of output were left out; the last %d of them:", self._beyond, len(self._tail))
            self._beyond = 0
            self._put(list(self._tail))

    def _put(self, lines: list[str]) -> None:
        text = "".join(lines)
        before, self._room = self._room, self._room - len(text.encode())
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError as error:
            self._lost += len(lines)
            self._limited_log.warning("the log cannot be written: %s", error)
        else:
            if self._lost:
                log.warning("%d lines of output are lost: the log could not be written", self._lost)
                self._lost = 0
        if before > 0 >= self._room:
            log.warning(
                "the ranks have written %d bytes, the limit of the log (log_limit): further lines are left out, but "
                "for the last %d at the end",
                self._limit,
                TAIL,
            )
