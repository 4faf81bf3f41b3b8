"""A run among those of a pool: what it wishes for, what its keeper grants, and which workers leave."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from typing_extensions import override

from elastic_runtime.clock import utc_now
from elastic_runtime.errors import ClusterUnavailable, InvalidDocument, InvalidSettings
from elastic_runtime.launcher.decision.facts import Refusal
from elastic_runtime.launcher.local.workers import CLOSE_TIMEOUT, COMING
from elastic_runtime.launcher.platform import Share, WorkerSet
from elastic_runtime.pool.connection import AGAIN, Streams, receive
from elastic_runtime.pool.messages import (
    FROM_KEEPER,
    TO_KEEPER,
    Granted,
    Launch,
    Refused,
    RunHello,
    Wishes,
    check_environment,
)
from elastic_runtime.printable import printable
from elastic_runtime.protocol.rank_names import WorkerName
from elastic_runtime.retry import Retry
from elastic_runtime.run.pool import PoolSpec
from elastic_runtime.run.spec import RunSpec

log = logging.getLogger(__name__)

LEFT_LATE = 2.0
"""Seconds beyond its time to leave, after which a worker is killed."""


class PoolMember(WorkerSet):
    """Asks the keeper for workers, and has some leave when the run is to have fewer.

    A worker that is to leave has a deadline, as one whose machine will be taken: its ranks leave at a commit, and then
    its agent ends, and with that it is another run's. If there is no keeper, the run goes on with what it has.

    Args:
        spec: of the run.
        pool: its place there.
        connect: dials the keeper once; raises ClusterUnavailable.
        on_change: called when there is something new.
    """

    def __init__(
        self,
        spec: RunSpec,
        pool: PoolSpec,
        connect: Callable[[], Awaitable[Streams]],
        on_change: Callable[[], None],
    ) -> None:
        self._spec, self._pool, self._connect, self._on_change = spec, pool, connect, on_change
        self._since, self._term = time.time(), 0
        """When the run came to the pool, in seconds since the epoch; and this launcher's number among the run's."""
        self._launch: Launch
        self._granted = Granted(0, (), "")
        self._seen: dict[str, float] = {}
        """Workers that are assigned, and since when their agents may connect, or end."""
        self._came: set[str] = set()
        """Workers whose agents are connected to the launcher."""
        self._late: set[str] = set()
        """Workers whose agents have not connected in time."""
        self._next = 0
        self._leaving: dict[str, datetime] = {}
        """Workers that are to leave, and their deadlines."""
        self._ranks: Mapping[str, int] = {}
        bounds = spec.workers
        self._wishes = Wishes(bounds.minimum, bounds.start, bounds.maximum, pool.priority, pool.greedy)
        self._writer: asyncio.StreamWriter | None = None
        self._problem = ""
        """Why there is no connection to a keeper; empty: there is one, or it is looked for."""
        self._warnings: list[str] = []
        self._task: asyncio.Task[None] | None = None
        self._nobody = asyncio.Event()

    def begin(self, launch: Launch, wanted: int | None = None) -> None:
        """Connect to the keeper, and again whenever the connection ends. Raise InvalidSettings.

        Args:
            launch: how agents of the run are started.
            wanted: first number of workers; None: the run's own.
        """
        if wanted is not None:
            self._wishes = replace(self._wishes, wanted=wanted)
        try:
            check_environment(launch.environment)
        except InvalidDocument as error:
            raise InvalidSettings("environment", str(error), "Have less in it, or train without a pool") from None
        self._launch = launch
        self._task = asyncio.create_task(self._stay_connected())

    def is_up(self) -> bool:
        """Whether the pool is up, as far as is known."""
        return True

    def how_to_bring_up(self) -> str:
        """What a person does who wants the pool up, for a sentence."""
        return f"run: elastic-training pool up {self._pool.name}"

    def has_notice(self, _worker: str, /) -> bool:
        """Whether this worker will be taken, as far as is known here."""
        return False

    @override
    def share(self, wanted: int, /) -> Share:
        granted, bounds = self._granted, self._spec.workers
        if not granted.workers or not wanted:
            return Share(wanted, "")
        most = bounds.maximum if self._wishes.greedy else wanted
        workers = max(bounds.minimum, min(granted.workers, most))
        if workers > wanted:
            return Share(workers, f"{workers} workers of pool {self._pool.name}, which nobody else wishes for")
        return Share(workers, granted.reason)

    @override
    def refusal(self) -> Refusal | None:
        granted = self._granted
        words = self._problem or granted.trouble or ("" if granted.workers else granted.reason)
        return Refusal(words) if words else None

    @override
    def only(self, workers: int, /) -> None:
        if self._wishes.greedy:
            self._wish(replace(self._wishes, greedy=False))
            log.info("the run takes no idle workers any more: its script cannot use more than %d", workers)

    @override
    def deadline(self, worker: str, /) -> datetime | None:
        return self._leaving.get(WorkerName.parse(worker).pod)

    @override
    def came(self, worker: str, /) -> None:
        self._came.add(WorkerName.parse(worker).pod)

    @override
    def gone(self, worker: str, /) -> None:
        pod = WorkerName.parse(worker).pod
        self._came.discard(pod)
        if pod in self._seen:  # Its agent ends now, or connects again.
            self._seen[pod] = time.monotonic()

    @override
    def end(self, worker: str, /) -> str:
        worker = WorkerName.parse(worker).pod
        if worker in self._seen and worker not in self._wishes.ends:
            self._wish(replace(self._wishes, ends=(*self._wishes.ends, worker)))
        return "its processes are killed, and its place in the pool is free"

    @override
    def warnings(self) -> tuple[str, ...]:
        told, self._warnings = tuple(self._warnings), []
        return told

    def world(self, ranks: Mapping[str, int]) -> None:
        """Who trains.

        Args:
            ranks: the lowest rank of each worker that has one, by its name.
        """
        self._ranks = {WorkerName.parse(worker).pod: rank for worker, rank in ranks.items()}

    def reconcile(self, wanted: int) -> None:
        """Wish for so many, and have those leave that are too many. Called again and again."""
        if wanted != self._wishes.wanted:
            self._wish(replace(self._wishes, wanted=wanted))
        self._let_leave()
        now = time.monotonic()
        for worker, since in self._seen.items():
            if worker not in self._came | self._late and now - since > COMING:
                self._late.add(worker)
                self._warnings.append(f"{worker} has not connected within {COMING:.0f} s: it is killed, and replaced")
                self.end(worker)
        for worker, deadline in self._leaving.items():
            if utc_now() > deadline + timedelta(seconds=LEFT_LATE):
                self.end(worker)

    @override
    async def end_workers(self) -> None:
        if self._task is None:
            return
        bounds = self._spec.workers
        self._wish(Wishes(bounds.minimum, 0, bounds.maximum, self._pool.priority, False))
        for last in (False, True):
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT):
                    while self._seen and self._writer:
                        self._nobody.clear()
                        await self._nobody.wait()
            except TimeoutError:
                log.warning("these agents did not end in time: %s", ", ".join(self._seen))
                if not last:
                    self._wish(replace(self._wishes, ends=tuple(self._seen)))
        await self.leave()

    async def leave(self) -> None:
        """Close the connection to the keeper, and dial it no more."""
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def _let_leave(self) -> None:
        keep = self.share(self._wishes.wanted).workers
        staying = [worker for worker in self._seen if worker not in self._leaving]
        if len(staying) <= keep:
            return
        staying.sort(key=self._order)
        for worker in staying[keep:]:
            self._leaving[worker] = utc_now() + timedelta(seconds=self._spec.timing.leave_grace)
            if worker not in self._came:
                self.end(worker)
        self._on_change()

    def _order(self, worker: str) -> tuple[bool, float, bool]:
        """Those stay longest that have no notice, and the lowest ranks."""
        return self.has_notice(worker), self._ranks.get(worker, math.inf), worker not in self._came

    def _wish(self, wishes: Wishes) -> None:
        self._wishes = wishes
        self._say(TO_KEEPER.write(wishes))

    def _say(self, line: bytes) -> None:
        if self._writer and not self._writer.is_closing():
            self._writer.write(line)

    async def _stay_connected(self) -> None:
        retry, connected = Retry(AGAIN), False
        while True:
            try:
                streams = await self._connect()
            except ClusterUnavailable as error:
                self._is_away(str(error), lost=connected)
                connected = False
            else:
                if await self._converse(*streams):
                    retry.succeeded()
                    connected = True
            await retry.pause()

    def _is_away(self, problem: str, *, lost: bool) -> None:
        name, remedy = self._pool.name, self.how_to_bring_up()
        if not self.is_up():
            self._problem = f"pool {name} is not up any more: {remedy}"
        else:
            self._problem = f"waits for the keeper of pool {name}: {problem}. If it does not come, {remedy}"
        if lost:
            self._warnings.append(f"pool {name} has no keeper: the run goes on with the workers that it has")
        self._nobody.set()
        self._on_change()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Returns at the end of the connection whether the keeper has granted anything in it."""
        self._writer, granted = writer, False
        self._say(TO_KEEPER.write(self._hello()))
        try:
            while isinstance(message := await receive(reader, FROM_KEEPER), Granted):
                granted, self._problem = True, ""
                self._heard(message)
            if isinstance(message, Refused):
                self._has_no_keeper(f"refuses this run: {message.reason}")
            elif not granted:
                self._has_no_keeper("ends each connection; its log may say why")
        except InvalidDocument as error:
            self._has_no_keeper(f"says what this launcher does not understand: {error}")
        finally:
            self._writer = None
            writer.transport.abort()
        return granted

    def _has_no_keeper(self, why: str) -> None:
        problem = f"the keeper of pool {self._pool.name} {printable(why)}"
        if problem != self._problem:
            self._problem = problem
            log.warning("%s", problem)
            self._on_change()

    def _hello(self) -> RunHello:
        spec, granted = self._spec, self._granted
        place = (spec.name, spec.uid, self._since, granted.workers, self._next)
        return RunHello(*place, self._launch, self._wishes, self._term, granted.assigned)

    def _heard(self, granted: Granted) -> None:
        now = time.monotonic()
        self._granted = granted
        self._seen = {worker: self._seen.get(worker, now) for worker in granted.assigned}
        numbers = (each.rpartition("-")[2] for each in granted.assigned)
        self._next = max([self._next, *(int(each) + 1 for each in numbers if each.isdecimal())])
        self._late &= self._seen.keys()
        self._leaving = {worker: by for worker, by in self._leaving.items() if worker in self._seen}
        for worker in {*self._wishes.ends, *self._wishes.taken} - self._seen.keys():
            self._wishes = self._wishes.without(worker)
        if not self._seen:
            self._nobody.set()
        self._let_leave()
        self._on_change()
