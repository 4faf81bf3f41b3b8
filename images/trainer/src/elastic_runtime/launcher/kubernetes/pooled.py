"""Workers of a run in a namespace whose workers are pods of a pool."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from typing_extensions import override

from elastic_runtime.errors import ElasticError, InvalidDocument
from elastic_runtime.kubernetes.client import Client
from elastic_runtime.kubernetes.objects import Object
from elastic_runtime.kubernetes.reflector import Reflector
from elastic_runtime.kubernetes.resources import CONFIG_MAPS
from elastic_runtime.launcher.kubernetes.pods import InPods, WorkerPods
from elastic_runtime.launcher.kubernetes.scale_down import written
from elastic_runtime.launcher.platform import lowest_ranks
from elastic_runtime.launcher.pool.access import PoolAccess
from elastic_runtime.launcher.pool.member import PoolMember
from elastic_runtime.pool.connection import connect
from elastic_runtime.pool.messages import AGENT_FILES, Launch
from elastic_runtime.pool.pods import objects
from elastic_runtime.pool.pods.objects import PoolPart
from elastic_runtime.printable import LONG, printable
from elastic_runtime.protocol.rank_names import WorkerName
from elastic_runtime.run.join import is_joined
from elastic_runtime.run.pool import PoolSpec
from elastic_runtime.run.runobjects import SIZE, size_of
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import Status, WorkerState

log = logging.getLogger(__name__)

INTERVAL = 0.1
"""Seconds between two comparisons of the requested size with what the pool grants."""


class PooledPods(InPods, PoolMember):
    """A :class:`PoolMember` whose agents run in pods that the keeper has started and the launcher watches.

    Args:
        client: of the namespace.
        spec: of the run.
        pool: its place there.
        access: addresses and certificates.
        root: copy of the run's root, which has the requested size.
        term: number of this launcher among those of the run.
    """

    def __init__(
        self, client: Client, spec: RunSpec, pool: PoolSpec, access: PoolAccess, root: Reflector[Object], term: int
    ) -> None:
        super().__init__(
            spec, pool, lambda: connect(*access.keeper, access.tls, f"pool {pool.name}"), self._tell_change
        )
        self._client, self._access, self._root, self._term = client, access, root, term
        self._listener: Callable[[], None] = lambda: None
        labels = objects.selector(pool.name, access.uid, PoolPart.HOST)
        audience = objects.audience(pool.name, access.uid)
        self._pods = WorkerPods(client, labels, audience, self._pods_changed, self._tell_change)
        self._wanted = self._read = spec.workers.start
        """Workers to request from the keeper, and the last valid size in the root."""
        self._noticed: frozenset[str] = frozenset()
        """Pods whose agents have a notice."""
        self._reconciling: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def fill(self) -> None:
        """Learn how things stand. Raises what the API server says."""
        await self._pods.copy.fill()

    def open(self, on_change: Callable[[], None]) -> None:
        """Connect to the keeper, and watch the pods. Raise InvalidDocument or InvalidSettings.

        Args:
            on_change: called when there is something new.
        """
        self._listener = on_change
        if root := self._find_root():  # A launcher that replaces another one keeps the run's place.
            self._since = root.created.timestamp()
        self._read_size()
        self.begin(self._make_launch(), self._wanted)
        self._reconciling = asyncio.create_task(self._reconcile())
        self._tasks = [self._reconciling, *(asyncio.create_task(each) for each in self._pods.follow())]

    def asked(self) -> int | str | None:
        """Return the size in the root, which is the run's first size until somebody requests another."""
        root = self._find_root()
        return size_of(root.annotations, self._spec.workers.start) if root else None

    def ask(self, workers: int) -> None:
        """Write that size into the root, unless the root has changed since it was read."""
        self._wanted = workers
        root = self._find_root()
        if root and (self._asking is None or self._asking.done()):
            self._asking = asyncio.create_task(self._write(root, workers))

    def offer(self, status: Status) -> None:
        """Read ranks and notices: when the run shrinks, workers with a notice leave first, then the highest ranks."""
        leaving = (each.name for each in status.workers if each.state is WorkerState.LEAVING)
        self._noticed = frozenset(WorkerName.parse(each).pod for each in leaving)
        self.world(lowest_ranks(status))

    @override
    def expects(self, worker: str, /) -> bool:
        return worker in self._seen

    @override
    def deadline(self, worker: str, /) -> datetime | None:
        known = [each for each in (super().deadline(worker), self._pods.deadline(worker)) if each is not None]
        return min(known, default=None)

    @override
    def end(self, worker: str, /) -> str:
        return "what is left of it on its machine stays" if is_joined(worker) else super().end(worker)

    @override
    def replace(self, worker: str, /) -> None:
        pod = WorkerName.parse(worker).pod
        if pod in self._leaving and self._pods.deadline(worker) is None:
            return  # It is given back to the pool, and its machine stays.
        if pod in self._seen and pod not in self._wishes.taken:
            self._wish(replace(self._wishes, taken=(*self._wishes.taken, pod)))

    @override
    def gone(self, worker: str, /) -> None:
        super().gone(worker)
        self._pods.gone(worker)

    @override
    def how_to_bring_up(self) -> str:
        return "clear the task: the next run brings the pool up, or says what is wrong"

    @override
    async def end_workers(self) -> None:
        if self._reconciling:
            self._reconciling.cancel()  # Or it would request workers again.
        await super().end_workers()
        await self._write_zero()

    @override
    def has_notice(self, worker: str, /) -> bool:
        pod = self._pods.of(worker)
        if worker in self._noticed or pod is None:
            return True
        return pod.going or self._pods.reclaims.deadline(pod) is not None

    async def close(self) -> None:
        """Stop watching, and disconnect from the keeper. Agents end when their launcher disconnects."""
        tasks = [*self._tasks, *((self._asking,) if self._asking else ())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks = []
        await self.leave()
        await self._pods.close()

    def _make_launch(self) -> Launch:
        spec, folder = self._spec, self._access.certificates
        arguments = (
            *("--launcher", self._access.launcher, "--slots", str(spec.workers.slots)),
            *("--grace", f"{spec.timing.leave_grace:g}", "--metadata", spec.recovery.notices.value),
        )
        try:
            certificates = {name: (folder / name).read_text() for name in AGENT_FILES}
        except OSError as error:
            raise InvalidDocument(f"the certificates of the run's agents cannot be read: {error}") from error
        return Launch(arguments, "", "", {**self._access.credentials, **spec.environment}, certificates)

    async def _reconcile(self) -> None:
        while True:
            self._read_size()
            self.reconcile(self._wanted)
            await asyncio.sleep(INTERVAL)

    def _read_size(self) -> None:
        asked, bounds = self.asked(), self._spec.workers
        if isinstance(asked, int) and asked != self._read:
            self._read = asked
            self._wanted = min(max(asked, bounds.minimum), bounds.maximum) if asked else 0

    async def _write(self, root: Object, workers: int) -> None:
        metadata = {"uid": root.uid, "resourceVersion": root.version, "annotations": {SIZE: str(workers)}}
        try:
            await self._client.patch(CONFIG_MAPS, root.name, {"metadata": metadata})
        except ElasticError as error:  # The next look decides anew.
            log.debug("the size is not %d yet: %s", workers, printable(error, LONG))

    async def _write_zero(self) -> None:
        """Let readers see that nothing computes."""
        if root := self._find_root():
            patch = {"metadata": {"uid": root.uid, "annotations": {SIZE: "0"}}}
            await written(lambda: self._client.patch(CONFIG_MAPS, root.name, patch), "the size")

    def _find_root(self) -> Object | None:
        return next(iter(self._root.objects.values()), None)

    def _pods_changed(self) -> None:
        self._pods.reclaims.look()
        self._tell_change()

    def _tell_change(self) -> None:
        self._listener()
