"""Waiting for a run: the one loop that the trigger and the not deferred operator share.

Streams the log, says what changes, renews the lease, keeps the absolute deadline, and notices when somebody else has
taken over. It decides nothing about the run: what an ending means is for its caller.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from elastic_runtime.clock import utc_now
from elastic_runtime.errors import ClusterUnavailable, ElasticError, OwnershipLost, RunNotFound
from elastic_runtime.printable import printable
from elastic_runtime.status import MAX_REASON, Status
from elastic_training.clusters.base import LogLease, LogLines, Quiet, RunRef, StatusChanged
from elastic_training.clusters.cluster import Cluster
from elastic_training.rank_lines import is_shown

_RENEWALS = 6
"""Of a lease, in its length: some may fail."""
_LINE = 256 * 1024
"""Characters of a line of the run's log; places read no longer ones."""
_LAST_NOTE = 3.0
"""Seconds to note at the end how far the log has come: a triggerer that ends does not wait for long."""


class Ending(StrEnum):
    """Why :func:`follow` came back."""

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
    """What came out."""

    ending: Ending
    status: Status | None = None
    """The last one seen."""
    detail: str = ""
    """For people."""


@dataclass(frozen=True, slots=True)
class Pace:
    """In seconds."""

    beat: float = 15.0
    """Longest time between two looks at clock and lease: a triggerer has a thousand runs to look at."""
    lease: float = 600.0
    """Longest time between two renewals of the lease; a shorter lease is renewed six times in its length."""
    retry: float = 2.0
    """First pause when the cluster does not answer; doubles up to ``retry_maximum``."""
    retry_maximum: float = 60.0


class Log(Protocol):
    """What standard library's and Airflow's loggers have in common."""

    def info(self, message: str, /, *args: object) -> object:
        """Percent formatting."""

    def warning(self, message: str, /, *args: object) -> object:
        """Percent formatting."""


class Follower:
    """One watch of one run, by one process.

    Args:
        owner: whose try this is; see :meth:`Cluster.take_log_lease`.
        log: receives the run's log lines, and a line for every change.
        deadline: absolute; None: none.
        ranks: whose lines are wanted of the log; None: all.
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
        pace: Pace | None = None,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._cluster = cluster
        self._ref = ref
        self._owner = owner
        self._log = log
        self._deadline = deadline
        self._ranks = ranks
        self._pace = pace or Pace()
        self._now = now
        self._log_lease: LogLease | None = None
        self._cursor = self._noted = ""
        self._status: Status | None = None
        self._lease_due = 0.0

    @property
    def token(self) -> str | None:
        """Of our log lease; None before it was taken."""
        return self._log_lease.token if self._log_lease else None

    async def follow(self) -> Followed:
        """Wait for the end. Safe to cancel at any time; whoever follows next goes on where this one stopped."""
        try:
            return await self._follow()
        finally:
            await self._note_at_last()

    async def _follow(self) -> Followed:
        pause = self._pace.retry
        while True:
            try:
                ending = await self._watch()
            except ClusterUnavailable as error:
                self._log.warning("%s; trying again in %g s", printable(error), pause)
                await asyncio.sleep(pause)
                pause = min(2 * pause, self._pace.retry_maximum)
                ending = Ending.DEADLINE if self._too_late() else None
            except RunNotFound as error:
                return Followed(Ending.VANISHED, self._status, str(error))
            except OwnershipLost as error:
                return Followed(Ending.SUPERSEDED, self._status, str(error))
            else:
                pause = self._pace.retry
            if ending:
                return Followed(ending, self._status, self._status.reason if self._status else "")

    async def _watch(self) -> Ending | None:
        """Until the end, or an error; None when the watch ended without a final status and has to be taken up again."""
        if self._log_lease is None:
            self._log_lease = await self._cluster.take_log_lease(self._ref, self._owner)
            self._cursor = self._noted = self._log_lease.cursor
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
        for line in update.lines:
            if is_shown(line, self._ranks):
                self._log.info("%s", printable(line, _LINE))
        # After the lines: killed in between, these come twice; the other way round they would be missing.
        self._cursor = update.cursor
        if update.note:
            await self._note()

    async def _note(self) -> None:
        assert self._log_lease is not None
        await self._cluster.advance(self._ref, self._log_lease.token, self._cursor)
        self._noted = self._cursor
        self._plan_renewal()

    async def _note_at_last(self) -> None:
        """What was told and not noted, whatever ended this; best effort."""
        if self._cursor != self._noted:
            with suppress(ElasticError, TimeoutError):
                async with asyncio.timeout(_LAST_NOTE):
                    await self._note()

    def _say(self, status: Status) -> None:
        if summary(status) != (summary(self._status) if self._status else None):
            self._log.info("Run %s: %s", self._ref.name, summary(status))
        self._status = status

    async def _renew_lease(self) -> None:
        if asyncio.get_running_loop().time() >= self._lease_due:
            assert self._log_lease is not None
            self._plan_renewal()
            await self._cluster.renew_lease(self._ref, self._log_lease.token)

    def _plan_renewal(self) -> None:
        self._lease_due = asyncio.get_running_loop().time() + self._renewal

    @property
    def _renewal(self) -> float:
        """Seconds between two renewals."""
        assert self._log_lease is not None
        return min(self._pace.lease, (self._log_lease.lease or math.inf) / _RENEWALS)

    def _too_late(self) -> bool:
        return self._deadline is not None and self._now() >= self._deadline


def summary(status: Status) -> str:
    """What a person wants to see change; not the step, which always does."""
    world = f"{status.world_size} ranks in generation {status.generation}, {status.target_size} workers wanted"
    return f"{status.phase}, {world}: {printable(status.reason, MAX_REASON)}"
