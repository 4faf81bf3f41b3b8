"""The lines of a run's log, read: who wrote each, how much it weighs, when. And which of them come into the task's.

The launcher writes three kinds (:mod:`elastic_runtime.launcher.record.output`, and the formats of its own log and, on
this machine, its agents')::

    TIME WORKER [RANK]<stderr>: LINE
    TIME LEVEL launcher: LINE
    TIME LEVEL WORKER agent: LINE

What has none of these shapes is passed on as it is. A rank cannot write the latter two: its lines have their prefix.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from elastic_runtime.errors import InvalidSettings

LATE = timedelta(seconds=10)
"""A line that is told so long after it was written keeps its time: there is no other place for it in Airflow's log."""
_TIME = r"(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?Z) "
_RANK = re.compile(_TIME + r"(?P<text>\S{1,300} \[(?P<rank>\d{1,9}|\?)\]<(?P<stream>stdout|stderr)>: .*)", re.DOTALL)
_OWN = re.compile(
    _TIME + r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<who>launcher: |(?=\S{1,300} agent: ))(?P<text>.*)",
    re.DOTALL,
)


class Source(StrEnum):
    """Who wrote a line; also behind the dot of its logger's name, by which Airflow's viewer filters."""

    LAUNCHER = "launcher"
    AGENT = "agent"
    STDOUT = "rank.stdout"
    STDERR = "rank.stderr"
    OTHER = ""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a run's log."""

    source: Source
    level: int
    """Level as in :mod:`logging`. Ranks' lines on stderr are warnings, because their severity is unknown."""
    text: str
    """Without time and level; with the worker and the rank of a rank's."""
    time: datetime | None = None
    rank: int | None = None
    """None: of no rank, or of one that never was in a world."""

    def is_shown(self, ranks: Collection[int] | None) -> bool:
        """Whether it is one of those ranks' (None: any), or not of a rank.

        A rank that never was in a world has no number; its lines are shown with those of any other.
        """
        if ranks is None or self.source not in (Source.STDOUT, Source.STDERR):
            return True
        return bool(ranks) if self.rank is None else self.rank in ranks

    def told_at(self, now: datetime) -> str:
        """The text, with its own time if that is long ago."""
        if self.time is None or now - self.time < LATE:
            return self.text
        return f"({self.time:%Y-%m-%d %H:%M:%S} UTC) {self.text}"


def ranks_shown(field: str, given: object) -> tuple[int, ...] | None:
    """One rank or several, ascending; None: all; empty: none. Raises InvalidSettings."""
    if given is None:
        return None
    ranks = set()
    for rank in given if isinstance(given, Collection) and not isinstance(given, str) else (given,):
        if isinstance(rank, bool) or not isinstance(rank, int) or rank < 0:
            remedy = "Write [0] for the first rank's lines, [] for none, None for all"
            raise InvalidSettings(field, f"{rank!r} is not a rank", remedy)
        ranks.add(rank)
    return tuple(sorted(ranks))


def read_line(line: str) -> LogLine:
    """Parse a line of a run's log."""
    if found := _RANK.fullmatch(line):
        source = Source(f"rank.{found['stream']}")
        level = logging.INFO if source is Source.STDOUT else logging.WARNING
        rank = None if found["rank"] == "?" else int(found["rank"])
        return LogLine(source, level, found["text"], _time(found["time"]), rank)
    if found := _OWN.fullmatch(line):
        source = Source.LAUNCHER if found["who"] else Source.AGENT
        level = logging.getLevelNamesMapping()[found["level"]]
        return LogLine(source, level, found["text"], _time(found["time"]))
    return LogLine(Source.OTHER, logging.INFO, line)


def _time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:  # 25 o'clock
        return None
