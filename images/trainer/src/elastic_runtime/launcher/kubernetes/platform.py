"""Platform in a namespace: the run's objects, watched, and its status, written."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Protocol

from typing_extensions import override

from elastic_runtime.errors import Conflict, ElasticError, OwnershipLost, RunNotFound
from elastic_runtime.kubernetes.client import Client
from elastic_runtime.kubernetes.copies import watched_copy
from elastic_runtime.kubernetes.objects import Object
from elastic_runtime.kubernetes.resources import CONFIG_MAPS
from elastic_runtime.launcher.decision.facts import LeadershipState
from elastic_runtime.launcher.kubernetes.leadership import Leadership
from elastic_runtime.launcher.kubernetes.pooled import PooledPods
from elastic_runtime.launcher.kubernetes.publishing import Publisher
from elastic_runtime.launcher.kubernetes.scale_down import scale_to_zero
from elastic_runtime.launcher.kubernetes.workers import PodWorkers
from elastic_runtime.launcher.platform import LeaseAge, Platform, WorkerSet
from elastic_runtime.launcher.pool.access import PoolAccess
from elastic_runtime.printable import LONG, printable
from elastic_runtime.run.runobjects import CANCEL, JOIN_TOKENS, LEASE, REQUESTS, STACKS, WATCHED, ObjectNames
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import Status

log = logging.getLogger(__name__)

LAST_WRITE = 3.0
"""Seconds for a last writing of the status by a launcher that makes way."""


class NamespaceWorkers(WorkerSet, Protocol):
    """Workers in pods, and the place where it stands how many are asked for."""

    async def fill(self) -> None:
        """Learn how things stand. Raises what the API server says."""

    def open(self, on_change: Callable[[], None]) -> None:
        """Start to watch.

        Args:
            on_change: called when there is something new.
        """

    def asked(self) -> int | str | None:
        """As :meth:`~elastic_runtime.launcher.platform.Documents.asked`."""

    def ask(self, workers: int) -> None:
        """As :meth:`~elastic_runtime.launcher.platform.Documents.ask`."""

    def offer(self, status: Status) -> None:
        """Each status, of which workers may be chosen that leave first."""

    async def close(self) -> None:
        """Stop watching."""


class KubernetesPlatform(Platform):
    """Implements :class:`~elastic_runtime.launcher.platform.Platform`.

    Args:
        client: of the run's namespace.
        spec: of the run.
        root: the run's root, as read at the begin.
        leadership: the right to write the status.
        taken: set once this launcher's pod is being taken.
        access: to the pool that the workers are of; None: they are the run's own.
    """

    workers: NamespaceWorkers

    def __init__(
        self,
        client: Client,
        spec: RunSpec,
        root: Object,
        leadership: Leadership,
        taken: asyncio.Event,
        access: PoolAccess | None = None,
    ) -> None:
        self._client, self._spec, self._taken = client, spec, taken
        self._names, self._root_uid = ObjectNames(spec.name), root.uid
        self._on_change: Callable[[], None] = lambda: None
        self._lease = LeaseAge(asyncio.get_running_loop().time)
        # A lease that could not be renewed has not run out.
        self._root = watched_copy(
            client, CONFIG_MAPS, self._root_changed, self._lease.restart, fields=f"metadata.name={self._names.root}"
        )
        if spec.pool and access:
            self.workers = PooledPods(client, spec, spec.pool, access, self._root, leadership.term.number)
        else:
            self.workers = PodWorkers(client, spec)
        self._publisher = Publisher(leadership.write, self._ended)
        self._lost = self._deleted = False
        self._tasks: list[asyncio.Task[None]] = []

    async def fill(self) -> None:
        """Learn how things stand. Raises what the API server says."""
        await self._root.fill()
        await self.workers.fill()

    @override
    def open(self, _port: int, on_change: Callable[[], None]) -> None:
        """Start to watch. Workers get the port from the run's Service, not from here."""
        self._on_change = on_change
        if asked := self._spec.jupyter:
            way = f"service/{self._names.jupyter} {asked.port} --namespace {self._client.namespace}"
            log.info("Jupyter is reached by: kubectl port-forward %s", way)
        self._tasks = [
            asyncio.create_task(each) for each in (self._root.run(), self._await_taken(), self._publisher.run())
        ]
        self.workers.open(on_change)

    @override
    def asked(self) -> int | str | None:
        return self.workers.asked()

    @override
    def ask(self, workers: int) -> None:
        self.workers.ask(workers)

    @override
    def requests(self) -> str | None:
        root = self._root.objects.get(self._names.root)
        return root.annotations.get(REQUESTS) if root else None

    def join_tokens(self) -> str | None:
        """Return the root's annotation :data:`~elastic_runtime.run.runobjects.JOIN_TOKENS`."""
        root = self._root.objects.get(self._names.root)
        return root.annotations.get(JOIN_TOKENS) if root else None

    @override
    def cancel(self) -> str | None:
        root = self._root.objects.get(self._names.root)
        if self._deleted or root is None or root.uid != self._root_uid or root.going:
            return "the run has been deleted"
        return root.annotations.get(CANCEL)

    @override
    def stacks_asked(self) -> str | None:
        root = self._root.objects.get(self._names.root)
        return root.annotations.get(STACKS) if root else None

    @override
    def lease_age(self) -> float | None:
        """Return the age, which does not grow while the API server is away."""
        age = self._lease()
        return 0.0 if age and self._root.trouble else age

    @override
    def watched(self) -> bool:
        root = self._root.objects.get(self._names.root)
        return root is not None and WATCHED in root.annotations

    @override
    def leadership(self) -> LeadershipState:
        if self._lost:
            return LeadershipState.LOST
        return LeadershipState.ENDING if self._taken.is_set() else LeadershipState.HELD

    @override
    def publish(self, status: Status) -> None:
        """Pass the status to :mod:`.publishing`, which decides when to write it."""
        self._publisher.offer(status)
        self.workers.offer(status)

    @override
    async def flush(self) -> None:
        await self._publisher.flush()

    @override
    async def end_workers(self) -> None:
        if self._spec.jupyter:
            await scale_to_zero(self._client, self._names.jupyter)
        await self.workers.end_workers()

    @override
    async def close(self) -> None:
        """Stop watching. The workers stay for the next launcher."""
        await self.workers.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        if self._publisher.unwritten():
            with contextlib.suppress(TimeoutError, OwnershipLost):
                async with asyncio.timeout(LAST_WRITE):
                    await self._publisher.flush()

    async def abandon(self) -> None:
        """Delete the run, which nobody wants any more; unless somebody has come after all."""
        root = self._root.objects.get(self._names.root)
        lease = root.annotations.get(LEASE) if root else None
        try:
            while root and root.uid == self._root_uid and root.annotations.get(LEASE) == lease:
                try:
                    await self._client.delete(
                        CONFIG_MAPS, root.name, uid=root.uid, version=root.version, propagation="Foreground"
                    )
                    return
                except Conflict:
                    root = await self._client.get(CONFIG_MAPS, self._names.root)
            log.info("somebody wants the run after all: it is not deleted")
        except RunNotFound:
            return
        except ElasticError as error:
            log.warning("the abandoned run is left as it is: %s", printable(error, LONG))

    async def _await_taken(self) -> None:
        await self._taken.wait()
        log.info("this launcher's pod is being taken")
        self._on_change()

    def _ended(self, error: OwnershipLost | RunNotFound) -> None:
        log.warning("the status is not written any more: %s", printable(error, LONG))
        self._lost = isinstance(error, OwnershipLost)
        self._deleted = isinstance(error, RunNotFound)
        self._on_change()

    def _root_changed(self) -> None:
        root = self._root.objects.get(self._names.root)
        self._lease.see(root.annotations.get(LEASE) if root else None)
        self._on_change()
