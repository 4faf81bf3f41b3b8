"""Waiting for a run: the one loop that the trigger and the not deferred operator share.

Streams the log, says what changes, renews the lease, keeps the absolute deadline, and notices when somebody else has
taken over. It decides nothing about the run: what an ending means is for its caller.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import groupby
from operator import itemgetter
from typing import Any, Protocol

from elastic_runtime.clock import utc_now
from elastic_runtime.errors import ClusterUnavailable, ElasticError, InvalidSettings, OwnershipLost, RunNotFound
from elastic_runtime.printable import printable
from elastic_runtime.retry import Retry, RetryPolicy
from elastic_runtime.run.status import MAX_REASON, EventKind, Phase, Status
from elastic_training.clusters.cluster import Cluster
from elastic_training.clusters.types import LOG_START, LogLease, LogLines, Quiet, RunRef, StatusChanged
from elastic_training.listeners import audience
from elastic_training.listeners.audience import Audience, Listener
from elastic_training.redaction.values import masked

# The lines of a run's log, read: who wrote each, how much it weighs, when. And which of them come into the task's.
#
# The launcher writes three kinds (elastic_runtime.launcher.record.output, and the formats of its own log and, on this
# machine, its agents')::
#
#     TIME WORKER [RANK]<stderr>: LINE
#     TIME LEVEL launcher: LINE
#     TIME LEVEL WORKER agent: LINE
#
# What has none of these shapes is passed on as it is. A rank cannot write the latter two: its lines have their prefix.

LATE = timedelta(seconds=10)
"""A line that is told so long after it was written keeps its time: there is no other place for it in Airflow's log."""
MAX_LINES = 50
"""Limit for an entry in the task's log, in lines."""
MAX_SIZE = 16_000
"""Limit for an entry of several lines, in characters."""
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


Entry = tuple[Source, int, str]
"""Source, level and text of an entry in the task's log."""


def joined(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Join consecutive entries of one source and level into entries of several lines.

    Airflow's supervisor reads one entry of a triggerer's log, or 4 KiB, and then queries its database for triggers. So
    fewer entries cost less. Airflow's viewer shows time and level of an entry once, before its first line.
    """
    for (source, level), same in groupby(entries, key=itemgetter(0, 1)):
        texts: list[str] = []
        size = 0
        for _, _, text in same:
            if texts and (len(texts) == MAX_LINES or size + len(text) > MAX_SIZE):
                yield source, level, "\n".join(texts)
                texts, size = [], 0
            texts.append(text)
            size += len(text)
        yield source, level, "\n".join(texts)


def _time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:  # 25 o'clock
        return None


_RENEWALS = 6
"""Of a lease, in its length: some may fail."""
_LINE = 256 * 1024
"""Characters of a line of the run's log; places read no longer ones."""
_RETRY = RetryPolicy(first=2.0, longest=60.0)
_LAST_NOTE = 3.0
"""Seconds to note at the end how far the log has come: a triggerer that ends does not wait for long."""
NAME = "elastic_training"
"""Before the source's name, where the task's logger has no children."""


class Ending(StrEnum):
    """Reason why :func:`follow` returned."""

    FINISHED = "finished"
    """The run is over; its final status is here."""
    DEADLINE = "deadline"
    """The deadline has passed and the run goes on."""
    VANISHED = "vanished"
    """There is no such run any more."""
    SUPERSEDED = "superseded"
    """A newer try owns the run, or another process watches it."""


@dataclass(frozen=True, slots=True)
class Followed:
    """The outcome of following a run."""

    ending: Ending
    status: Status | None = None
    """The last one seen."""
    detail: str = ""
    """For people."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Intervals of a :class:`Follower`, in seconds."""

    beat: float = 15.0
    """Longest time between two looks at clock and lease: a triggerer has a thousand runs to look at."""
    lease: float = 600.0
    """Longest time between two renewals of the lease; a shorter lease is renewed six times in its length."""
    retry: RetryPolicy = _RETRY
    """When the cluster does not answer."""


class Log(audience.Log, Protocol):
    """And where the level is what somebody else says."""

    def log(self, level: int, message: str, /, *args: object) -> object:
        """Log a message with percent formatting, at a level of the module :mod:`logging`."""


class Follower:
    """One watch of one run, by one process.

    Args:
        owner: whose try this is; see :meth:`Cluster.take_log_lease`.
        log: receives the run's log lines, and what its launcher does not tell in them.
        deadline: absolute; None: none.
        ranks: whose lines are wanted of the log; None: all.
        listeners: told what happens, in the background; nothing that they do holds up or ends the watch.
        now: the clock that the deadline is compared with.
    """

    def __init__(
        self,
        cluster: Cluster,
        ref: RunRef,
        owner: str,
        log: Log,
        *,
        deadline: datetime | None = None,
        ranks: Collection[int] | None = None,
        listeners: Sequence[Listener] = (),
        pace: Pace | None = None,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._cluster = cluster
        self._ref = ref
        self._owner = owner
        self._log = log
        self._sources = Sources(log)
        self._deadline = deadline
        self._ranks = ranks
        self._audience = Audience(listeners, log)
        self._pace = pace or Pace()
        self._now = now
        self._log_lease: LogLease | None = None
        self._cursor = ""
        self._noted: tuple[str, str | None] = ("", None)
        self._status: Status | None = None
        self._lease_due = 0.0
        self._owes_way_in = False
        """Whoever followed before has not said it."""

    @property
    def token(self) -> str | None:
        """Token of our log lease. None before it was taken."""
        return self._log_lease.token if self._log_lease else None

    @property
    def status(self) -> Status | None:
        """Newest status that was received. None: none yet."""
        return self._status

    async def follow(self) -> Followed:
        """Wait for the end. Safe to cancel at any time; whoever follows next goes on where this one stopped."""
        followed = None
        try:
            followed = await self._follow()
            return followed
        finally:
            await self._audience.end(wait=followed is not None and followed.ending is not Ending.SUPERSEDED)
            await self._note_at_last()

    async def _follow(self) -> Followed:
        retry = Retry(self._pace.retry)
        while True:
            try:
                ending = await self._watch()
            except ClusterUnavailable as error:
                pause = retry.failed()
                self._log.warning("%s; trying again in %g s", printable(error), pause)
                await asyncio.sleep(pause)
                ending = Ending.DEADLINE if self._too_late() else None
            except RunNotFound as error:
                return Followed(Ending.VANISHED, self._status, str(error))
            except OwnershipLost as error:
                return Followed(Ending.SUPERSEDED, self._status, str(error))
            else:
                retry.succeeded()
            if ending:
                return Followed(ending, self._status, self._status.reason if self._status else "")

    async def _watch(self) -> Ending | None:
        """Until the end, or an error; None when the watch ended without a final status and has to be taken up again."""
        if self._log_lease is None:
            self._log_lease = await self._cluster.take_log_lease(self._ref, self._owner)
            self._cursor = self._log_lease.cursor
            self._owes_way_in = self._cursor == LOG_START
            self._audience.go_on_from(self._log_lease.told)
            self._noted = (self._cursor, self._audience.told)
        beat = min(self._pace.beat, self._renewal)
        async with aclosing(self._cluster.watch(self._ref, self._cursor, beat)) as updates:
            async for update in updates:
                match update:
                    case LogLines():
                        await self._stream(update)
                    case StatusChanged():
                        self._say(update.status)
                        if update.status.phase.final:
                            return Ending.FINISHED
                    case Quiet():
                        pass
                if self._too_late():
                    return Ending.DEADLINE
                await self._renew_lease()
        return None

    async def _stream(self, update: LogLines) -> None:
        assert self._log_lease is not None
        # A process that stood still for a minute asks before it speaks.
        if update.lines and await self._cluster.log_lease_holder(self._ref) != self._log_lease.token:
            raise OwnershipLost(f"somebody else streams the log of {self._ref.name} now")
        now = self._now()
        shown = (line for line in map(read_line, update.lines) if line.is_shown(self._ranks))
        entries = ((line.source, line.level, printable(masked(line.told_at(now)), _LINE)) for line in shown)
        for source, level, text in joined(entries) if self._sources.take_several_lines else entries:
            self._sources(source).log(level, "%s", text)
        # After the lines: killed in between, these come twice; the other way round they would be missing.
        self._cursor = update.cursor
        if update.note:
            await self._note()

    async def _note(self) -> None:
        assert self._log_lease is not None
        cursor, told = self._cursor, self._audience.told
        await self._cluster.advance(self._ref, self._log_lease.token, cursor, told)
        self._noted = (cursor, told)
        self._plan_renewal()

    async def _note_at_last(self) -> None:
        """What was told and not noted, whatever ended this; best effort."""
        if (self._cursor, self._audience.told) != self._noted:
            with suppress(ElasticError, TimeoutError):
                async with asyncio.timeout(_LAST_NOTE):
                    await self._note()

    def _say(self, status: Status) -> None:
        if word := news(self._status, status):
            self._log.log(*word)
        self._say_way_in(status)
        self._status = status
        self._audience.handle(status)

    def _say_way_in(self, status: Status) -> None:
        """Once rank 0 has a worker; again after the run had none, since it is another then."""
        if status.world_size == 0:
            self._owes_way_in |= status.phase in (Phase.PENDING, Phase.STARTING, Phase.SUSPENDED, Phase.PAUSED)
        elif self._owes_way_in and (worker := next((each for each in status.workers if 0 in each.ranks), None)):
            self._owes_way_in = False
            if words := self._cluster.shell_in(worker):
                self._log.log(logging.INFO, "for a shell beside rank 0: %s", printable(shlex.join(words), MAX_REASON))

    async def _renew_lease(self) -> None:
        if asyncio.get_running_loop().time() >= self._lease_due:
            assert self._log_lease is not None
            self._plan_renewal()
            await self._cluster.renew_lease(self._ref, self._log_lease.token)

    def _plan_renewal(self) -> None:
        self._lease_due = asyncio.get_running_loop().time() + self._renewal

    @property
    def _renewal(self) -> float:
        """Seconds between two renewals of the lease: a sixth of a lease that is short, else ``Pace.lease``."""
        assert self._log_lease is not None
        return min(self._pace.lease, (self._log_lease.lease or math.inf) / _RENEWALS)

    def _too_late(self) -> bool:
        return self._deadline is not None and self._now() >= self._deadline


def news(before: Status | None, status: Status) -> tuple[int, str, str] | None:
    """Return why nothing trains yet, or any more, which the launcher does not log: level, format and argument.

    A launcher tells in its log of what happens in the run. Until it runs, when it has been lost, and of why it still
    waits, the status alone does.
    """
    if before is not None and (before.phase, before.reason) == (status.phase, status.reason):
        return None
    told_by_launcher = any(event.kind is EventKind.FINISHED for event in status.events)
    waits_still = status.phase is Phase.SUSPENDED and before is not None and before.phase is Phase.SUSPENDED
    if status.phase in (Phase.PENDING, Phase.STARTING) or waits_still:
        return logging.INFO, f"{status.phase}: %s", printable(masked(status.reason), MAX_REASON)
    if status.phase.final and not told_by_launcher:
        level = logging.ERROR if status.phase is Phase.FAILED else logging.INFO
        return level, f"{status.phase}: %s", printable(masked(status.reason), MAX_REASON)
    return None


def summary(status: Status) -> str:
    """Return the part of a status whose changes matter to readers: not the step, which always changes."""
    world = f"{status.world_size} ranks in generation {status.generation}, {status.target_size} workers wanted"
    return f"{status.phase}, {world}: {printable(status.reason, MAX_REASON)}"


# A logger for each source of a run's lines, beside a task's own: Airflow's viewer filters by its name and level.


class Sources:
    """Call it with a source.

    Args:
        log: the task's own, or a trigger's.
    """

    def __init__(self, log: Any) -> None:
        self._log = log
        self._loggers: dict[Source, Any] = {Source.OTHER: log}

    @property
    def take_several_lines(self) -> bool:
        """Whether an entry may have several lines. Below Airflow 3, the log is text, and each line is an entry."""
        return not isinstance(self._log, logging.Logger)

    def __call__(self, source: Source) -> Any:
        """Return the logger of a source."""
        if source not in self._loggers:
            self._loggers[source] = self._named(source)
        return self._loggers[source]

    def _named(self, source: Source) -> Any:
        if isinstance(self._log, logging.Logger):  # Below Airflow 3: as its children they go where it goes.
            return self._log.getChild(source)
        if not hasattr(self._log, "bind"):
            return self._log
        import structlog  # a dependency of those versions of Airflow that log so

        return structlog.get_logger(f"{NAME}.{source}")
