"""Workers of a run that are pods of its own ReplicaSet: watched, replaced, and explained when they do not come."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from datetime import datetime

from typing_extensions import override

from elastic_runtime.errors import Conflict, ElasticError
from elastic_runtime.kubernetes.client import Client
from elastic_runtime.kubernetes.copies import watched_copy
from elastic_runtime.kubernetes.deletion_costs import DeletionCosts
from elastic_runtime.kubernetes.diagnosis import Trouble, troubles
from elastic_runtime.kubernetes.enrichment import Enrichment
from elastic_runtime.kubernetes.replacing import REDIAL, Replacing
from elastic_runtime.kubernetes.resources import REPLICA_SETS
from elastic_runtime.launcher.decision.facts import Refusal
from elastic_runtime.launcher.kubernetes.growing import MemoryGrowing
from elastic_runtime.launcher.kubernetes.pods import InPods, WorkerPods
from elastic_runtime.launcher.kubernetes.scale_down import scale_to_zero
from elastic_runtime.printable import LONG, printable
from elastic_runtime.protocol.rank_names import WorkerName
from elastic_runtime.run import runobjects
from elastic_runtime.run.join import is_joined
from elastic_runtime.run.runobjects import ObjectNames, Part
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import Status, WorkerState

log = logging.getLogger(__name__)

END_TIMEOUT = 45.0
"""Seconds to wait for the end of the worker pods once the run is over; those of a dead node never end."""
LEAVING, IDLE, TRAINING, FIRST = -100, 0, 100, 200
"""Deletion costs of workers."""
MAX_TROUBLES = 3
"""Different ones that a refusal tells."""


class PodWorkers(InPods):
    """Args: client: of the run's namespace. spec: of the run."""

    def __init__(self, client: Client, spec: RunSpec) -> None:
        self._client, self._names = client, ObjectNames(spec.name)
        self._on_change: Callable[[], None] = lambda: None
        self._moved = asyncio.Event()
        self._set = watched_copy(client, REPLICA_SETS, self._changed, fields=f"metadata.name={self._names.worker}")
        labels = runobjects.selector(run=spec.name, uid=spec.uid, part=Part.WORKER)
        audience = runobjects.audience(spec.name, spec.uid)
        self._pods = WorkerPods(client, labels, audience, self._changed, self._nodes_changed)
        pods, now = self._pods.copy, asyncio.get_running_loop().time
        self._enrichment = Enrichment(client, pods, self._changed)
        self._replacing = Replacing(client, pods, now, spec.recovery.start_timeout, self._nodes_changed)
        self._costs = DeletionCosts(client, pods)
        self._growing = MemoryGrowing(
            client,
            pods,
            lambda: self._set.objects.get(self._names.worker),
            self._nodes_changed,
            enabled=spec.recovery.grow_memory is not None,
        )
        self._resizing: asyncio.Task[None] | None = None
        self._refusal: Refusal | None = None
        self._told: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []

    async def fill(self) -> None:
        """Learn how things stand. Raises what the API server says."""
        for copy in (self._set, self._pods.copy):
            await copy.fill()
        self._growing.begin()

    def open(self, on_change: Callable[[], None]) -> None:
        """Start to watch.

        Args:
            on_change: called when there is something new.
        """
        self._on_change = on_change
        act = [self._replacing.follow(), self._costs.follow(), self._growing.follow()]
        follow = [self._set.run(), *self._pods.follow(), self._enrichment.follow(), *act]
        self._tasks = [asyncio.create_task(each) for each in follow]

    def asked(self) -> int | None:
        """Return the size of the ReplicaSet; None: there is none."""
        found = self._set.objects.get(self._names.worker)
        return int(found.spec.get("replicas", 1)) if found else None

    def ask(self, workers: int) -> None:
        """Request that size if the ReplicaSet was not changed since it was last read."""
        found = self._set.objects.get(self._names.worker)
        if found and (self._resizing is None or self._resizing.done()):
            self._resizing = asyncio.create_task(self._resize(found.version, workers))

    def offer(self, status: Status) -> None:
        """Have pods go first, if any have to, whose loss costs least."""
        self._costs.offer(costs(status))

    @override
    def expects(self, worker: str, /) -> bool:
        """Accept every worker while the watch of pods is behind, because a pod may be newer."""
        pod = self._pods.copy.objects.get(worker)
        return self._pods.copy.trouble is not None if pod is None else not self._replacing.has_ended(pod)

    @override
    def refusal(self) -> Refusal | None:
        return self._refusal

    @override
    def deadline(self, worker: str, /) -> datetime | None:
        return self._pods.deadline(worker)

    @override
    def replace(self, worker: str, /) -> None:
        if pod := self._pods.of(worker):
            self._replacing.give_up(pod)

    @override
    def end(self, worker: str, /) -> str:
        if is_joined(worker):
            return "what is left of it on its machine stays"
        pod = self._pods.of(worker)
        if pod is None:
            return "its pod is not there any more, as far as is known"
        self._replacing.end(pod)
        return f"its pod is deleted unless it connects again within {REDIAL:.0f} s"

    @override
    def came(self, worker: str, /) -> None:
        self._replacing.came(WorkerName.parse(worker).pod)

    @override
    def gone(self, worker: str, /) -> None:
        self._pods.gone(worker)
        self._replacing.gone(WorkerName.parse(worker).pod)

    @override
    def warnings(self) -> tuple[str, ...]:
        return self._replacing.warnings() + self._growing.warnings()

    @override
    def memory_limit(self, worker: str, /) -> int | None:
        return self._growing.limit(WorkerName.parse(worker).pod)

    @override
    def out_of_memory(self) -> tuple[str, ...]:
        return self._growing.killed()

    @override
    def can_give_memory(self) -> bool:
        return self._growing.possible

    @override
    def give_memory(self, worker: str, limit: int, /) -> None:
        self._growing.give(WorkerName.parse(worker).pod, limit)

    @override
    async def end_workers(self) -> None:
        await scale_to_zero(self._client, self._names.worker)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_TIMEOUT):
                while self._alive():
                    self._moved.clear()
                    await self._moved.wait()
                return
        log.warning("these worker pods have not ended in time: %s", ", ".join(self._alive()))

    async def close(self) -> None:
        """Stop watching. The ReplicaSet keeps the workers."""
        self._replacing.close()
        await self._pods.close()
        tasks = [*self._tasks, *((self._resizing,) if self._resizing else ())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks = []

    async def _resize(self, version: str, workers: int) -> None:
        patch = {"metadata": {"resourceVersion": version}, "spec": {"replicas": workers}}
        try:
            await self._client.patch(REPLICA_SETS, self._names.worker, patch, "scale")
        except Conflict:
            return  # Its status has changed, or its size: the next look decides anew.
        except ElasticError as error:
            if str(error) not in self._told:
                self._told.add(str(error))
                log.warning("the size is not %d yet: %s", workers, error)

    def _alive(self) -> list[str]:
        return [name for name, pod in self._pods.copy.objects.items() if not pod.stopped]

    def _nodes_changed(self) -> None:
        self._on_change()

    def _changed(self) -> None:
        found = troubles(
            self._set.objects.get(self._names.worker), self._pods.copy.objects.values(), self._enrichment.warnings
        )
        self._refusal = refusal(found)
        for trouble in found:
            if trouble.cause.words not in self._told:
                self._told.add(trouble.cause.words)
                log.warning("%s", printable(trouble.sentence, LONG))
        self._pods.reclaims.look()
        self._replacing.look()
        self._growing.look()
        self._moved.set()
        self._on_change()


def refusal(found: tuple[Trouble, ...]) -> Refusal | None:
    """The same for the decision, which waits a while before it believes that there is no hope."""
    if not found:
        return None
    sentences = [each.sentence for each in found[:MAX_TROUBLES]]
    return Refusal("; ".join(sentences), any(each.cause.hopeless for each in found))


# Which of them costs least to lose: one that is being taken anyway, then one that has no rank yet. Rank 0 writes the
# checkpoints, so its worker goes last. Pure.


def costs(status: Status) -> dict[str, int]:
    """Return the deletion cost of each connected worker, by the name of its pod."""
    here = [each for each in status.workers if not each.state.gone]
    return {WorkerName.parse(each.name).pod: _cost(each.state, each.ranks) for each in here}


def _cost(state: WorkerState, ranks: tuple[int, ...]) -> int:
    if state is WorkerState.LEAVING:
        return LEAVING
    if state is not WorkerState.TRAINING or not ranks:
        return IDLE
    return FIRST if 0 in ranks else TRAINING
