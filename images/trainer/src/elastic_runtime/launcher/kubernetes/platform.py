"""Platform in a namespace: the run's objects, watched, and its status, written."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from typing_extensions import override

from elastic_runtime.errors import Conflict, ElasticError, OwnershipLost, RetryableError, RunNotFound
from elastic_runtime.kubernetes.client import Client
from elastic_runtime.kubernetes.diagnosis import Cause, cause, of_maker, of_pod
from elastic_runtime.kubernetes.objects import Object, Pod
from elastic_runtime.kubernetes.reflector import Reflector
from elastic_runtime.kubernetes.resources import CONFIG_MAPS, PODS, REPLICA_SETS, Kind, V
from elastic_runtime.kubernetes.retry import UNTIL_BACK
from elastic_runtime.launcher.decision.facts import LeadershipState, Refusal
from elastic_runtime.launcher.kubernetes.deletion_costs import DeletionCosts
from elastic_runtime.launcher.kubernetes.enrichment import Enrichment
from elastic_runtime.launcher.kubernetes.growing import MemoryGrowing
from elastic_runtime.launcher.kubernetes.identities import Expected, Identities
from elastic_runtime.launcher.kubernetes.leadership import Leadership
from elastic_runtime.launcher.kubernetes.publishing import Publisher
from elastic_runtime.launcher.kubernetes.reclaims import Reclaims
from elastic_runtime.launcher.kubernetes.replacing import REDIAL, Replacing
from elastic_runtime.launcher.platform import LeaseAge, Machine, Platform
from elastic_runtime.printable import LONG, printable
from elastic_runtime.protocol.rank_names import WorkerName
from elastic_runtime.protocol.wire import Hello
from elastic_runtime.retry import Retry
from elastic_runtime.run import runobjects
from elastic_runtime.run.join import is_joined
from elastic_runtime.run.runobjects import CANCEL, JOIN_TOKENS, LEASE, REQUESTS, STACKS, WATCHED, ObjectNames, Part
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import Status

log = logging.getLogger(__name__)

END_TIMEOUT = 45.0
"""Seconds to wait for the end of the worker pods once the run is over; those of a dead node never end."""
OUTLIVING = 60.0
"""Seconds for which an agent stays connected whose pod is gone: deleted by force, its processes may write the last."""
LAST_WRITE = 3.0
"""Seconds for a last writing of the status by a launcher that makes way."""
MAX_TROUBLES = 3
"""Different ones that a refusal tells."""


class KubernetesPlatform(Platform):
    """Implements :class:`~elastic_runtime.launcher.platform.Platform`.

    Args:
        client: of the run's namespace.
        spec: of the run.
        root: the run's root, as read at the begin.
        leadership: the right to write the status.
        taken: set once this launcher's pod is being taken.
    """

    def __init__(
        self, client: Client, spec: RunSpec, root: Object, leadership: Leadership, taken: asyncio.Event
    ) -> None:
        self._client, self._spec, self._taken = client, spec, taken
        self._names, self._root_uid = ObjectNames(spec.name), root.uid
        self._loop = asyncio.get_running_loop()
        self._on_change: Callable[[], None] = lambda: None
        self._moved = asyncio.Event()
        name = "metadata.name="
        self._root = self._copy(CONFIG_MAPS, self._root_changed, fields=name + self._names.root)
        self._set = self._copy(REPLICA_SETS, self._workers_changed, fields=name + self._names.worker)
        workers = runobjects.selector(run=spec.name, uid=spec.uid, part=Part.WORKER)
        self._pods = self._copy(PODS, self._workers_changed, labels=workers)
        self._enrichment = Enrichment(client, self._pods, self._workers_changed)
        self._reclaims = Reclaims(client, self._pods, self._nodes_changed)
        self._replacing = Replacing(
            client, self._pods, self._loop.time, spec.recovery.start_timeout, self._nodes_changed
        )
        self._identities = Identities(client, spec, self._expected, self._loop.time)
        self._costs = DeletionCosts(client, self._pods)
        self._growing = MemoryGrowing(
            client,
            self._pods,
            lambda: self._set.objects.get(self._names.worker),
            self._nodes_changed,
            enabled=spec.recovery.grow_memory is not None,
        )
        self._publisher = Publisher(leadership.write, self._ended)
        self._absent: dict[str, float] = {}
        """By name: since when the pods of connected agents are gone."""
        self._lease = LeaseAge(self._loop.time)
        self._resizing: asyncio.Task[None] | None = None
        self._lost = self._deleted = False
        self._refusal: Refusal | None = None
        self._told: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []

    async def fill(self) -> None:
        """Learn how things stand. Raises what the API server says."""
        for copy in (self._root, self._set, self._pods):
            await copy.fill()
        self._growing.begin()

    @override
    def open(self, _port: int, on_change: Callable[[], None]) -> None:
        """Start to watch. Workers get the port from the run's Service, not from here."""
        self._on_change = on_change
        if asked := self._spec.jupyter:
            way = f"service/{self._names.jupyter} {asked.port} --namespace {self._client.namespace}"
            log.info("Jupyter is reached by: kubectl port-forward %s", way)
        follow = [copy.run() for copy in (self._root, self._set, self._pods)]
        watch = [self._enrichment.follow(), self._reclaims.follow(), self._await_taken(), self._identities.prepare()]
        write = [self._publisher.run(), self._replacing.follow(), self._costs.follow(), self._growing.follow()]
        self._tasks = [asyncio.create_task(each) for each in (*follow, *watch, *write)]

    @override
    def asked(self) -> int | str | None:
        found = self._set.objects.get(self._names.worker)
        return int(found.spec.get("replicas", 1)) if found else None

    @override
    def ask(self, workers: int) -> None:
        """Request that size if the ReplicaSet was not changed since it was last read."""
        found = self._set.objects.get(self._names.worker)
        if found and (self._resizing is None or self._resizing.done()):
            self._resizing = asyncio.create_task(self._resize(found.version, workers))

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
    def expects(self, worker: str, /) -> bool:
        """Accept every worker while the watch of pods is behind, because a pod may be newer."""
        pod = self._pods.objects.get(worker)
        return self._pods.trouble is not None if pod is None else not self._replacing.has_ended(pod)

    @override
    async def prove(self, hello: Hello, /) -> str | None:
        return await self._identities.prove(hello)

    @override
    def admit(self, hello: Hello, /) -> None:
        self._identities.admit(hello)

    @override
    def stray(self, worker: str, /) -> str | None:
        if is_joined(worker):  # In no pod, with a certificate of its own.
            return None
        # Another process may have connected from elsewhere with what was in a pod.
        name, pod, now = WorkerName.parse(worker).pod, self._pod_of(worker), self._loop.time()
        if pod is not None or self._pods.trouble is not None:
            self._absent.pop(name, None)
            if pod is not None and not self._identities.confirms(name, pod.uid):
                return "its token was of an earlier pod of that name"
            return None
        return "its pod is gone" if now - self._absent.setdefault(name, now) > OUTLIVING else None

    @override
    def refusal(self) -> Refusal | None:
        return self._refusal

    @override
    def deadline(self, worker: str, /) -> datetime | None:
        pod = self._pod_of(worker)
        return self._reclaims.deadline(pod) if pod else None

    @override
    def machine(self, worker: str, /) -> Machine | None:
        pod = self._pod_of(worker)
        return self._reclaims.machine(pod) if pod else None

    @override
    def replace(self, worker: str, /) -> None:
        if pod := self._pod_of(worker):
            self._replacing.give_up(pod)

    @override
    def end(self, worker: str, /) -> str:
        if is_joined(worker):
            return "what is left of it on its machine stays"
        pod = self._pod_of(worker)
        if pod is None:
            return "its pod is not there any more, as far as is known"
        self._replacing.end(pod)
        return f"its pod is deleted unless it connects again within {REDIAL:.0f} s"

    @override
    def came(self, worker: str, /) -> None:
        self._replacing.came(WorkerName.parse(worker).pod)

    @override
    def gone(self, worker: str, /) -> None:
        self._absent.pop(WorkerName.parse(worker).pod, None)
        self._identities.forget(WorkerName.parse(worker).pod)
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
    def publish(self, status: Status) -> None:
        """Pass the status to :mod:`.publishing`, which decides when to write it."""
        self._publisher.offer(status)
        self._costs.offer(status)

    @override
    async def flush(self) -> None:
        await self._publisher.flush()

    @override
    async def end_workers(self) -> None:
        await self._scale_to_nothing(self._names.worker)
        if self._spec.jupyter:
            await self._scale_to_nothing(self._names.jupyter)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_TIMEOUT):
                while self._alive():
                    self._moved.clear()
                    await self._moved.wait()
                return
        log.warning("these worker pods have not ended in time: %s", ", ".join(self._alive()))

    @override
    async def close(self) -> None:
        """Stop watching. The ReplicaSet keeps the workers."""
        self._replacing.close()
        await self._identities.close()
        tasks = [*self._tasks, *((self._resizing,) if self._resizing else ())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
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

    async def _scale_to_nothing(self, name: str) -> None:
        retry = Retry(UNTIL_BACK)
        while True:
            try:
                await self._client.patch(REPLICA_SETS, name, {"spec": {"replicas": 0}}, "scale")
                return
            except RunNotFound:
                return
            except RetryableError as error:
                log.info("%s is not sent home yet: %s", name, printable(error, LONG))
            except ElasticError as error:
                log.error("%s stays until the run is deleted: %s", name, printable(error, LONG))
                return
            await retry.pause()

    async def _await_taken(self) -> None:
        await self._taken.wait()
        log.info("this launcher's pod is being taken")
        self._on_change()

    def _expected(self, worker: str) -> Expected:
        """Of an agent's own name, which is its pod's."""
        pod = self._pods.objects.get(worker)
        return Expected(self._client.namespace, pod.uid if pod else None)

    def _alive(self) -> list[str]:
        return [name for name, pod in self._pods.objects.items() if not pod.stopped]

    def _pod_of(self, worker: str) -> Pod | None:
        return self._pods.objects.get(WorkerName.parse(worker).pod)

    def _ended(self, error: OwnershipLost | RunNotFound) -> None:
        log.warning("the status is not written any more: %s", printable(error, LONG))
        self._lost = isinstance(error, OwnershipLost)
        self._deleted = isinstance(error, RunNotFound)
        self._on_change()

    def _root_changed(self) -> None:
        root = self._root.objects.get(self._names.root)
        self._lease.see(root.annotations.get(LEASE) if root else None)
        self._on_change()

    def _copy(self, kind: Kind[V], changed: Callable[[], None], **which: str) -> Reflector[V]:
        def troubled(error: ElasticError | None) -> None:
            if error:
                log.warning("training goes on, but no news of %s: %s", kind.plural, printable(error, LONG))
            else:
                log.info("the API server answers again for %s", kind.plural)
                if kind is CONFIG_MAPS:  # A lease that could not be renewed has not run out.
                    self._lease.restart()
            self._on_change()

        return Reflector(self._client, kind, changed=lambda _: changed(), troubled=troubled, **which)

    def _nodes_changed(self) -> None:
        self._on_change()

    def _workers_changed(self) -> None:
        found = troubles(
            self._set.objects.get(self._names.worker), self._pods.objects.values(), self._enrichment.warnings
        )
        self._refusal = refusal(found)
        for trouble in found:
            if trouble.cause.words not in self._told:
                self._told.add(trouble.cause.words)
                log.warning("%s", printable(trouble.sentence, LONG))
        self._reclaims.look()
        self._replacing.look()
        self._growing.look()
        self._moved.set()
        self._on_change()


# Why a run has fewer workers than it wants, in sentences. Pure.


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing that keeps worker pods from running."""

    cause: Cause
    pods: tuple[str, ...] = ()
    """Names; none when it keeps pods from being made at all."""

    @property
    def sentence(self) -> str:
        """For people, with the remedy."""
        more = f" and {len(self.pods) - 1} more" if len(self.pods) > 1 else ""
        who = f"worker pod {self.pods[0]}{more}" if self.pods else "making worker pods"
        return f"Kubernetes says of {who}: {self.cause}"


def troubles(replica_set: Object | None, pods: Iterable[Pod], warnings: Mapping[str, str]) -> tuple[Trouble, ...]:
    """Return the reasons why workers do not run, each once.

    Args:
        replica_set: of the workers, if it is there.
        pods: of the workers.
        warnings: newest warning event by uid of a pod, as ``REASON: MESSAGE``.
    """
    found: dict[str, list[str]] = {}
    if replica_set and (words := of_maker(replica_set)):
        found[words] = []
    for pod in pods:
        if words := of_pod(pod, warnings.get(pod.uid, "")):
            found.setdefault(words, []).append(pod.name)
    return tuple(Trouble(cause(words), tuple(sorted(names))) for words, names in found.items())


def refusal(found: tuple[Trouble, ...]) -> Refusal | None:
    """The same for the decision, which waits a while before it believes that there is no hope."""
    if not found:
        return None
    sentences = [each.sentence for each in found[:MAX_TROUBLES]]
    return Refusal("; ".join(sentences), any(each.cause.hopeless for each in found))
