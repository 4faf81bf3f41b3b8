"""The namespace that a pool is in, as its keeper has it: root and status, and the ReplicaSet of its hosts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from typing_extensions import override

from elastic_runtime.documents import from_json, to_json
from elastic_runtime.errors import ElasticError, InvalidDocument, InvalidSettings, RunNotFound
from elastic_runtime.kubernetes.client import Client
from elastic_runtime.kubernetes.copies import watched_copy
from elastic_runtime.kubernetes.deletion_costs import DeletionCosts
from elastic_runtime.kubernetes.diagnosis import troubles
from elastic_runtime.kubernetes.enrichment import Enrichment
from elastic_runtime.kubernetes.replacing import Replacing
from elastic_runtime.kubernetes.resources import CONFIG_MAPS, PODS, REPLICA_SETS
from elastic_runtime.kubernetes.retry import UNTIL_BACK
from elastic_runtime.pace import RateLimitedLog
from elastic_runtime.pool.place import KeeperPlace
from elastic_runtime.pool.pods.objects import SETTINGS, STATUS_KEY, PoolNames, PoolPart, selector
from elastic_runtime.pool.settings import PoolSettings
from elastic_runtime.pool.status import PoolStatus
from elastic_runtime.printable import LONG, printable
from elastic_runtime.retry import Retry

log = logging.getLogger(__name__)

PAUSE = 1.0
"""Seconds between two writes of the status, at least."""
LAST_WRITE = 3.0
"""Seconds for the status when the keeper ends."""
COSTS_WRITTEN = 12.0
"""Seconds after which deletion costs are written: then the controller ends hosts without an agent first."""
FREE, TRAINS = 0, 100
"""Deletion costs of hosts."""


@dataclass(frozen=True, slots=True)
class KeeperSettings:
    """What a keeper in a pod is told."""

    pool: str
    uid: str
    """Which incarnation of the pool."""
    root: str
    """Kubernetes' uid of the pool's root."""
    namespace: str
    address: str
    """Of this pod, on which the keeper listens."""
    port: int
    tls: Path
    """Folder with its certificate."""
    kubeconfig: Path | None = None
    """How to reach the API server; None: as this pod's service account."""


class PodsKeeperPlace(KeeperPlace):
    """Args: client: of the pool's namespace. settings: which pool."""

    on_demand = True
    returning = 15.0  # An attempt to connect takes 5 s, and the Service needs some to know the new pod.

    def __init__(self, client: Client, settings: KeeperSettings) -> None:
        self._client, self._settings, self._names = client, settings, PoolNames(settings.pool)
        self.address, self.tls = settings.address, settings.tls
        self._on_change: Callable[[], None] = lambda: None
        name = "metadata.name="
        self._root = watched_copy(client, CONFIG_MAPS, self._changed, fields=name + self._names.root)
        self._set = watched_copy(client, REPLICA_SETS, self._changed, fields=name + self._names.worker)
        labels = selector(settings.pool, settings.uid, PoolPart.HOST)
        self._pods = watched_copy(client, PODS, self._changed, labels=labels)
        self._enrichment = Enrichment(client, self._pods, self._changed)
        self._costs = DeletionCosts(client, self._pods)
        self._now = asyncio.get_running_loop().time
        self._replacing = Replacing(client, self._pods, self._now, math.inf, self._log_replaced)
        self._wanted: int | None = None
        """Hosts; None: nothing was divided yet."""
        self._status: PoolStatus | None = None
        self._written: PoolStatus | None = None
        self._due = asyncio.Event()
        self._smaller: float | None = None
        """Since when fewer hosts are wanted than there are."""
        self._busy: frozenset[str] = frozenset()
        self._problem = ""
        """Why the ReplicaSet cannot be scaled, for people."""
        self._unwritten = ""
        """Why the status cannot be written, for people."""
        self._limited_log = RateLimitedLog(log)
        self._tasks: list[asyncio.Task[None]] = []

    async def fill(self) -> None:
        """Learn how things stand. Raises what the API server says."""
        for copy in (self._root, self._set, self._pods):
            await copy.fill()

    @override
    def ports(self) -> tuple[int, ...]:
        return (self._settings.port,)

    @override
    def previous_workers(self) -> int:
        return self._size() or 0

    @override
    async def open(self, port: int, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        follow = [copy.run() for copy in (self._root, self._set, self._pods)]
        act = [self._enrichment.follow(), self._costs.follow(), self._replacing.follow(), self._write()]
        self._tasks = [asyncio.create_task(each) for each in (*follow, *act)]
        log.info("pool %s is kept at %s:%d", self._settings.pool, self.address, port)

    @override
    def is_up(self) -> bool:
        root = self._root.objects.get(self._names.root)
        return self._root.trouble is not None or (
            root is not None and root.uid == self._settings.root and not root.going
        )

    @override
    def settings(self) -> PoolSettings | None:
        root = self._root.objects.get(self._names.root)
        if root is None:
            return None
        try:
            return from_json(PoolSettings, root.annotations.get(SETTINGS, ""))
        except (InvalidDocument, InvalidSettings) as error:
            self._limited_log.warning("the pool's settings cannot be read: %s", printable(error, LONG))
            return None

    @override
    def scale(self, workers: int, busy: Collection[str], hosts: Collection[str]) -> None:
        self._costs.offer({host: TRAINS if host in busy else FREE for host in hosts})
        self._wanted, size = workers, self._size() or 0
        begins = not self._busy.issuperset(busy)  # What its loss costs is not written yet.
        self._busy = frozenset(busy)
        if workers >= size:
            self._smaller = None
        elif begins or self._smaller is None:
            self._smaller = self._now()
        if workers > size or (self._smaller is not None and self._now() - self._smaller > COSTS_WRITTEN):
            self._due.set()

    @override
    def give_up(self, taken: Collection[str], stuck: Collection[str]) -> None:
        for pod in list(self._pods.objects.values()):
            if pod.name in stuck:
                self._replacing.end_now(pod, "its agent does not end")
            elif pod.name in taken:
                self._replacing.give_up(pod)

    def _log_replaced(self) -> None:
        for each in self._replacing.warnings():
            log.warning("%s", printable(each))

    @override
    def trouble(self) -> str:
        replica_set = self._set.objects.get(self._names.worker)
        found = troubles(replica_set, self._pods.objects.values(), self._enrichment.warnings)
        own = {
            f"the pool's ReplicaSet {self._names.worker} cannot be scaled": self._problem,
            f"the pool's status {self._names.status} cannot be written": self._unwritten,
        }
        told = [f"{what}: {problem}" for what, problem in own.items() if problem]
        return "; ".join([*told, *(each.sentence for each in found)])

    @override
    def publish(self, status: PoolStatus) -> None:
        self._status = status
        if status != self._written:
            self._due.set()

    @override
    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._replacing.close()
        if not self.is_up():
            return  # A status of that name may be another incarnation's.
        with contextlib.suppress(TimeoutError, ElasticError):
            async with asyncio.timeout(LAST_WRITE):
                await self._write_status()

    def _size(self) -> int | None:
        found = self._set.objects.get(self._names.worker)
        return int(found.spec.get("replicas", 0)) if found else None

    def _changed(self) -> None:
        self._on_change()

    async def _write(self) -> None:
        """Scale the ReplicaSet and write the status, whenever they are not as they should be."""
        retry = Retry(UNTIL_BACK)
        while True:
            await self._due.wait()
            self._due.clear()
            # Each without the other: pods that come are of more use than a status, and that says why they do not.
            self._problem, self._unwritten = await _problem_of(self._scale), await _problem_of(self._write_status)
            if problem := self._problem or self._unwritten:
                self._limited_log.warning("the pool cannot be written yet: %s", problem)
                self._due.set()
                await retry.pause()
            else:
                retry.succeeded()
                await asyncio.sleep(PAUSE)

    async def _scale(self) -> None:
        size, wanted = self._size(), self._wanted
        too_early = self._smaller is not None and self._now() - self._smaller <= COSTS_WRITTEN
        if wanted is not None and size not in (None, wanted) and not too_early:
            await self._client.patch(REPLICA_SETS, self._names.worker, {"spec": {"replicas": wanted}}, "scale")

    async def _write_status(self) -> None:
        status = self._status
        if status is None or status == self._written:
            return
        with contextlib.suppress(RunNotFound):  # The pool is taken down.
            await self._client.patch(CONFIG_MAPS, self._names.status, {"data": {STATUS_KEY: to_json(status)}})
        self._written = status


async def _problem_of(write: Callable[[], Awaitable[None]]) -> str:
    """Write. Returns what the API server says against it; empty: nothing."""
    try:
        await write()
    except ElasticError as error:
        return printable(error, LONG)
    return ""
