"""Where a run's log has been read up to, exactly. Pure.

Kubernetes keeps no offsets. It stamps each line with a time, in nanoseconds, and gives a log again from a time on, in
whole seconds. So a place is a pod, the time of the last line that was read, and how many lines with exactly that time
were read; whoever goes on asks from that second on and passes over what it has.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from elastic_runtime.errors import InvalidDocument
from elastic_runtime.printable import printable
from elastic_training.clusters.types import LOG_START

LONGEST = 1 << 20
"""Bytes kept of a line; a rank that writes more without a line end writes no log."""
_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d) ")
_CURSOR = re.compile(r"(\S+) (\S+) (\d{1,12})\.(\d{9}) (\d{1,18})", re.ASCII)
_LAST = 253402300799
"""Second of the year 9999 at which dates end."""

Stamp = tuple[int, int]
"""Seconds since the epoch, and nanoseconds."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in the logs of a run's launchers."""

    created: str = ""
    """When the pod was created, as Kubernetes writes it: launchers are read in this order."""
    pod: str = ""
    """Its uid; empty: before the first."""
    stamp: Stamp = (0, 0)
    """Timestamp of the last line that was read."""
    count: int = 0
    """Lines with exactly this stamp that were read."""

    def __str__(self) -> str:
        if not self.pod:
            return LOG_START
        seconds, nanoseconds = self.stamp
        return f"{self.created} {self.pod} {seconds}.{nanoseconds:09} {self.count}"

    @classmethod
    def read(cls, text: str) -> Cursor:
        """Parse a cursor. Raise InvalidDocument."""
        if text == LOG_START:
            return cls()
        found = _CURSOR.fullmatch(text)
        if found is None or int(found[3]) > _LAST:
            raise InvalidDocument(f"{printable(text, 200)!r} is not a place in the log of a run on Kubernetes")
        return cls(found[1], found[2], (int(found[3]), int(found[4])), int(found[5]))

    def at(self, created: str, pod: str) -> Cursor:
        """The same place, if it is in this pod; else the beginning of that pod's log."""
        return self if pod == self.pod else Cursor(created, pod)

    def after(self, stamp: Stamp) -> Cursor:
        """Return the cursor after one more line with this timestamp."""
        if stamp == self.stamp:
            return replace(self, count=self.count + 1)
        return replace(self, stamp=stamp, count=1)

    @property
    def since(self) -> str | None:
        """From when on to ask for, as Kubernetes wants it; None: from the beginning."""
        if not self.count:
            return None
        return datetime.fromtimestamp(self.stamp[0], UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Passing:
    """Tells the lines that were read before from those that are new, in a log that was asked for from a cursor on."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._met = 0

    def new(self, stamp: Stamp) -> bool:
        """Whether the next line is one."""
        if not self._cursor.count or stamp > self._cursor.stamp:
            return True
        if stamp < self._cursor.stamp:
            return False
        self._met += 1
        return self._met > self._cursor.count


def split(line: bytes) -> tuple[Stamp | None, str]:
    """Time stamp and text of a line; words of the kubelet's own have no stamp."""
    found = _STAMP.match(line)
    if found is None:
        return None, line.decode(errors="replace")
    try:
        moment = datetime.fromisoformat((found[1] + found[3].replace(b"Z", b"+00:00")).decode())
    except ValueError:  # A thirteenth month: it only looks like a time.
        return None, line.decode(errors="replace")
    nanoseconds = int((found[2] or b"0").ljust(9, b"0"))
    return (int(moment.timestamp()), nanoseconds), line[found.end() :].decode(errors="replace")
