"""The ranks' output in the run's log: ``TIME WORKER [RANK]<stdout>: LINE``."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from datetime import datetime
from typing import TextIO

from elastic_runtime.documents import time_to_text

LAST_LINES = 5
"""Lines of stderr kept for the reason of a failure."""
LAST_LINE_LENGTH = 300


class OutputLog:
    """Args: stream: text, written line by line."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._last: deque[str] = deque(maxlen=LAST_LINES)

    def write(self, time: datetime, worker: str, rank: int | None, stream: str, lines: Iterable[str]) -> None:
        """Write what one rank wrote; a rank that never was in a world is ``[?]``."""
        prefix = f"{time_to_text(time)} {worker} [{'?' if rank is None else rank}]<{stream}>: "
        self._stream.write("".join(f"{prefix}{line}\n" for line in lines))
        self._stream.flush()
        if stream == "stderr":
            self._last.extend(line[:LAST_LINE_LENGTH] for line in lines if line.strip())

    def last_error(self) -> str:
        """The last lines that any rank wrote to stderr."""
        return " | ".join(self._last)
