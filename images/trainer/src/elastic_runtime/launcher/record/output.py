"""The ranks' output in the run's log: ``TIME WORKER [RANK]<stdout>: LINE``.

The log grows up to a limit, so that a script that writes without end cannot fill the disk that the status is on. It is
never cut or begun anew, since whoever follows it knows its place by the bytes before it: beyond the limit, lines are
left out, and the newest of them are written when the run ends. The launcher's own lines are few, and always written.
Among them are lines on checkpoints and on the progress of a script that prints little.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from time import gmtime
from typing import Protocol, TextIO

from elastic_runtime.documents import time_to_text
from elastic_runtime.launcher.record.tracebacks import tells_of_lost_peer
from elastic_runtime.pace import RateLimitedLog
from elastic_runtime.printable import printable
from elastic_runtime.run.spec import LOG_LIMIT
from elastic_runtime.run.status_progress import Progress, progress_words

log = logging.getLogger(__name__)

LINE = 64 * 1024
"""Characters of one line; agents send no longer ones."""
LAST_LINES = 5
"""Lines of stderr kept for the reason of a failure."""
LAST_LINE_LENGTH = 300
TAIL, TAIL_LINE = 200, 1000
"""Lines beyond the limit that are kept for the end, and characters of each."""
CHECKPOINT_INTERVAL = timedelta(seconds=60)
"""Shortest time between two lines on checkpoints. A hand-over, the first one, and the first after a failure are logged
immediately."""
PROGRESS_INTERVAL = 30.0
"""Shortest time between two lines on progress, in seconds."""
FEW_LINES = 10
"""Most lines that all ranks together may write in that time for the launcher to log their progress."""
TIME_LEFT_INTERVAL = 60.0
"""Shortest time between two of these lines that have the time left, in seconds. They also come if ranks write more."""
MOST_METRICS = 4
"""Metrics in a line on progress, those that were reported first."""


def start_log() -> None:
    """Write the log of this process, a launcher, to stdout, where the ranks' output goes, too. Times are in UTC."""
    logging.Formatter.converter = gmtime
    logging.basicConfig(
        level=logging.WARNING,  # Horovod logs each request to the root logger at INFO.
        format="%(asctime)s.%(msecs)03dZ %(levelname)s launcher: %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
        stream=sys.stdout,
    )
    logging.getLogger("elastic_runtime").setLevel(logging.DEBUG)  # Whoever shows it shows as much as is wanted.
    logging.raiseExceptions = False  # A log that cannot be written has no room for why.


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

    def last_error(self, *, of_peers: bool = True) -> str:
        """The last lines that any rank wrote to stderr.

        Args:
            of_peers: also those about a peer that is gone, which is no cause where a rank has left the others.
        """
        return " | ".join(line for line in self._last if of_peers or not tells_of_lost_peer(line))

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


class CheckpointLines:
    """Log checkpoints at a limited rate. Each is also an event of the status.

    Args:
        now: wall clock.
    """

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._due: datetime | None = None
        self._untold = 0

    def written(self, step: int, seconds: float, *, handover: bool) -> None:
        """Log a durable checkpoint that was written in so many seconds, or count it for the next line."""
        if handover:
            log.info("hand-over checkpoint of step %d in %.2f s", step, seconds)
            return
        if self._due is not None and self._now() < self._due:
            self._untold += 1
            return
        more = f", after {self._untold} others" if self._untold else ""
        self._due, self._untold = self._now() + CHECKPOINT_INTERVAL, 0
        log.info("checkpoint of step %d in %.2f s%s", step, seconds, more)

    def failed(self) -> None:
        """Log the next checkpoint immediately, since this one failed. The failure is an event of its own."""
        self._due = None


class Record(Protocol):
    """Interface of the record that is read."""

    @property
    def progress(self) -> tuple[int | None, Mapping[str, float], float | None, int, Progress | None]:
        """Newest step, newest value of each metric, newest throughput, ranks that train, and percent and time left."""


class ProgressLines:
    """Log the progress of a training whose script prints little, or tells how many steps it has.

    Args:
        now: seconds of any clock.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._due = now() + PROGRESS_INTERVAL
        self._left_due = self._due
        self._step: int | None = None
        self._lines = 0

    def look(self, record: Record, lines: int) -> None:
        """Write a line if one is due.

        Args:
            record: of the run.
            lines: that ranks have written so far.
        """
        if self._now() < self._due:
            return
        self._due = self._now() + PROGRESS_INTERVAL
        quiet, self._lines = lines - self._lines <= FEW_LINES, lines
        step, metrics, rate, ranks, progress = record.progress
        moved, self._step = step is not None and step != self._step, step
        left = progress_words(progress) if progress and self._now() >= self._left_due else ""
        if moved and ranks and (quiet or left):
            parts = [f"step {step}", *(f"{name} {value:.4g}" for name, value in list(metrics.items())[:MOST_METRICS])]
            parts += [] if rate is None else [f"{rate:.3g} steps/s"]
            log.info("%s, %d ranks%s", ", ".join(parts), ranks, f"; {left}" if left else "")
            if left:
                self._left_due = self._now() + TIME_LEFT_INTERVAL
