"""Watch of one run: the shared watch of its namespace, and the run's own log."""

from __future__ import annotations

import asyncio
import math
import operator
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Protocol

from elastic_runtime.clock import utc_now
from elastic_runtime.kubernetes.objects import Event
from elastic_runtime.run.status import Status
from elastic_training.clusters.kubernetes import connection
from elastic_training.clusters.kubernetes.documents import compare_and_set
from elastic_training.clusters.kubernetes.status import diagnosis
from elastic_training.clusters.kubernetes.status.judgement import (
    Published,
    Seen,
    judge,
    read_published,
)
from elastic_training.clusters.kubernetes.status.snapshot import read_seen
from elastic_training.clusters.kubernetes.watching.cursor import Cursor
from elastic_training.clusters.kubernetes.watching.hub import Hub, watching
from elastic_training.clusters.kubernetes.watching.log import Tail
from elastic_training.clusters.types import LogLines, Quiet, RunRef, StatusChanged, Update

LINGER = 10.0
"""Seconds that the end of a watch waits for the launcher's last lines after the final status."""
READINGS = 50.0
"""Status documents a second that one process reads in whole, of all its runs together; final ones go first."""
FIGURES = 5.0
"""The same, of those in which only what counts on has changed (step, metrics, usage)."""
LOOKS = 5.0
"""Closer looks a second at runs whose launcher does not run, of all runs together: each is a handful of requests."""
_RECENT = 10.0
"""Seconds in which a launcher usually starts, so that nobody asks why it does not."""
BATCHES = 20.0
"""Batches of lines that are passed on in a second, at most, of all runs of this process together."""
NOTES = 5.0
"""Requests a second that note how far a log has come, the same."""
LEAST = 1.0
"""Seconds between two of either, for one run."""


async def updates(
    connection_id: str, namespace: str | None, ref: RunRef, cursor: str | None, beat: float
) -> AsyncGenerator[Update, None]:
    """Yield the updates of a run in pods, as :meth:`Cluster.watch` specifies."""
    access = await connection.access_of(connection_id)
    place = None if cursor is None else Cursor.read(cursor)
    async with watching(access, namespace or access.namespace) as hub:
        with hub.subscribed(ref.name) as wake:
            async with (
                _tail(hub, ref, place, wake) as tail,
                aclosing(_Run(hub, ref, wake, tail).updates(beat)) as told,
            ):
                async for update in told:
                    yield update


@asynccontextmanager
async def _tail(hub: Hub, ref: RunRef, place: Cursor | None, wake: asyncio.Event) -> AsyncIterator[Tail | None]:
    if place is None:
        yield None
        return
    tail = Tail(hub, ref, place, wake)
    reading = asyncio.create_task(tail.run(), name=f"log of {ref.name}")
    try:
        yield tail
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


class _Run:
    """One run, seen through the copy that the shared watch keeps."""

    def __init__(self, hub: Hub, ref: RunRef, wake: asyncio.Event, tail: Tail | None) -> None:
        self._hub = hub
        self._ref = ref
        self._wake = wake
        self._tail = tail
        self._batches = None if tail is None else Batches(tail, lambda: hub.runs)
        self._now = asyncio.get_running_loop().time
        self._status: Status | None = None
        self._published = Published()
        self._version: str | None = None
        self._news = ""
        self._read_due = self._figures_due = 0.0
        self._marks: tuple[object, ...] = ()
        self._settled = False
        """Whether the status follows from these marks alone, at any time."""
        self._events: tuple[Event, ...] = ()
        self._look_due = 0.0
        self._since = self._now()

    async def updates(self, beat: float) -> AsyncGenerator[Update, None]:
        """Until the final status, which comes after the last line of the log."""
        told: Status | None = None
        spoke, over_since = self._now(), None
        while True:
            self._wake.clear()
            status = await self._look()
            if status is not None and status.phase.final:
                over_since = over_since or self._now()
            drained = over_since is not None and self._drained(over_since)
            if self._batches is not None and (lines := self._batches.next(self._now(), last=drained)):
                spoke = self._now()
                yield lines
                continue
            if status is not None and status != told and (drained or over_since is None):
                told, spoke = status, self._now()
                yield StatusChanged(status)
            if drained:
                return
            if told is not None and self._now() >= spoke + beat:
                spoke = self._now()
                yield Quiet()
            await self._rest(spoke + beat, over_since)

    def _drained(self, over_since: float) -> bool:
        return self._tail is None or self._tail.at_end or self._now() > over_since + LINGER

    async def _rest(self, beat_due: float, over_since: float | None) -> None:
        """Until something happens, or something is due."""
        due = [max(beat_due, self._now() + 0.05)]
        if self._batches is not None:
            due.append(self._batches.due)
        if over_since is not None:
            due.append(over_since + LINGER + 0.1)
        if self._status is None:
            due.append(self._now() + 0.2)
        due += [each for each in (self._reading_due(), self._look_due) if each > self._now()]
        try:
            async with asyncio.timeout_at(min(due)):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _look(self) -> Status | None:
        """How it is doing; None until that is known.

        Raises:
            RunNotFound: it is gone, and had not ended before.
            ElasticError: the watch cannot go on.
        """
        self._hub.check()
        if self._tail is not None and self._tail.failure is not None:
            raise self._tail.failure
        if not self._hub.current:
            return self._status
        marks = self._hub.marks(self._ref.name)
        if self._settled and _same(marks, self._marks) and self._now() < self._reading_due():
            return self._status
        self._marks, self._settled = marks, False
        found = self._hub.root(self._ref)
        if found is None:
            await self._confirm_existence()
            return self._status
        self._read()
        seen = Seen(found, self._published, self._hub.job(self._ref), tuple(self._hub.pods(self._ref)), self._events)
        status = judge(seen, utc_now())
        if self._doubtful(seen, status):
            if self._now() < self._look_due:
                return self._status
            status = await self._look_closer()
        else:
            self._settled = status is seen.published.status and not any(pod.deadline for pod in seen.pods)
        self._status = status
        return status

    def _reading_due(self) -> float:
        """Return when the present status document may be read. Infinite: it was read."""
        found = self._hub.status_map(self._ref)
        if found is None or found.version == self._version:
            return math.inf
        said = self._hub.announced(found)
        if said.final:
            return 0.0
        return self._figures_due if said.news == self._news else self._read_due

    def _read(self) -> None:
        """The status document, when it has changed, and it is this run's turn or its last word."""
        found = self._hub.status_map(self._ref)
        if found is None or self._now() < self._reading_due():
            return
        self._published, self._version = read_published(found), found.version
        self._news = self._hub.announced(found).news
        self._read_due = self._now() + self._pace(0.2, READINGS)
        self._figures_due = self._now() + self._pace(0.2, FIGURES)

    def _doubtful(self, seen: Seen, status: Status) -> bool:
        """Whether the copy says it and the launcher does not: its streams are not of one moment."""
        spoken = seen.published.status
        if spoken is not None:
            return status is not spoken
        if status.phase.final:
            return True
        quiet = (
            not any(map(diagnosis.running, seen.pods))
            and diagnosis.about(seen.pods, seen.events, seen.job, utc_now()) is None
        )
        return quiet and self._now() > self._since + _RECENT

    async def _look_closer(self) -> Status:
        seen = await read_seen(self._hub.client, await compare_and_set.read(self._hub.client, self._ref))
        self._events = seen.events
        self._look_due = self._now() + self._pace(2.0, LOOKS)
        return judge(seen, utc_now())

    async def _confirm_existence(self) -> None:
        """Raises RunNotFound unless it is there, or has ended as it should."""
        if self._status is not None and self._status.phase.final:
            return
        await compare_and_set.read(self._hub.client, self._ref)

    def _pace(self, least: float, rate: float) -> float:
        """Seconds between two of a kind for this run, so that all runs together stay under that rate."""
        return max(least, self._hub.runs / rate)


def _same(ones: Sequence[object], others: Sequence[object]) -> bool:
    return len(ones) == len(others) and all(map(operator.is_, ones, others))


# When lines of a log are passed on, and when it is noted in the cluster how far they have come.
#
# Each is little for one run and much for a thousand in one triggerer: to note is a request; and what is passed on
# wakes Airflow's supervisor, which then looks into its database. So both happen the less often for one run the more
# runs there are, at whole seconds, so that many runs wake it at one time, and each time after another while, so that
# runs that began together do not stay together. What was passed on and not noted comes again, if the triggerer is
# killed; not if it ends.


class Source(Protocol):
    """Source of log lines that a watch forwards."""

    @property
    def waiting(self) -> bool:
        """Whether there are lines to take."""

    def take(self) -> LogLines:
        """Return what has arrived since the last call, which may be nothing."""


class Batches:
    """Batches of one run's log lines.

    Args:
        source: of the lines.
        runs: how many runs this process waits for.
    """

    def __init__(self, source: Source, runs: Callable[[], int]) -> None:
        self._source = source
        self._runs = runs
        self._batch_due = self._note_due = 0.0
        self._noted = True

    def next(self, now: float, *, last: bool) -> LogLines | None:
        """Return what to pass on, or to note, at this time.

        Args:
            now: seconds, by any clock.
            last: the run is over, and all that there is has come.
        """
        note = last or now >= self._note_due
        if not (self._source.waiting and (last or now >= self._batch_due)) and (self._noted or not note):
            return None
        self._batch_due = self._after(now, BATCHES)
        if note:
            self._note_due = self._after(now, NOTES)
        self._noted = note
        return replace(self._source.take(), note=note)

    @property
    def due(self) -> float:
        """When to ask again, unless something comes before."""
        return min(
            self._batch_due if self._source.waiting else math.inf,
            math.inf if self._noted else self._note_due,
        )

    def _after(self, now: float, rate: float) -> float:
        pause = random.uniform(0.5, 1.5) * self._runs() / rate  # noqa: S311  # spreads load, guards nothing
        return math.floor(now + max(LEAST, pause))
