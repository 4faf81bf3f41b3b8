"""``cluster="CONNECTION"`` or ``"CONNECTION/NAMESPACE"``: runs in pods of a Kubernetes cluster."""

from __future__ import annotations

import asyncio
import functools
import logging
import shlex
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, Concatenate, ParamSpec, TypeVar

from typing_extensions import override

from elastic_runtime.clock import utc_now
from elastic_runtime.errors import Conflict, ElasticError, FailureKind, InvalidSettings, RunNotFound
from elastic_runtime.kubernetes.client import Client
from elastic_runtime.kubernetes.objects import Object, Pod
from elastic_runtime.kubernetes.resources import CONFIG_MAPS, JOBS, PODS, REPLICA_SETS
from elastic_runtime.pool.pods.objects import POOL_LABEL
from elastic_runtime.protocol.rank_names import WorkerName
from elastic_runtime.run import runobjects
from elastic_runtime.run.headline import headline
from elastic_runtime.run.join import JoinToken, OfferedToken, check_door, join_command
from elastic_runtime.run.pool import PoolSpec
from elastic_runtime.run.runobjects import ObjectNames, Part, Term
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import WorkerStatus
from elastic_training.clusters.claiming import BeforeTakeover
from elastic_training.clusters.claims import Observed, Times
from elastic_training.clusters.cluster import Cluster
from elastic_training.clusters.document import RunDocument
from elastic_training.clusters.kubernetes import connection, pools
from elastic_training.clusters.kubernetes.documents import compare_and_set, creation
from elastic_training.clusters.kubernetes.documents.removal import end_compute, remove
from elastic_training.clusters.kubernetes.documents.root import RootVersion, document, of_run
from elastic_training.clusters.kubernetes.manifests.mutation import mutated
from elastic_training.clusters.kubernetes.manifests.objects import pods_digest, render, run_objects
from elastic_training.clusters.kubernetes.status.diagnosis import running
from elastic_training.clusters.kubernetes.status.judgement import judge, read_term, summaries
from elastic_training.clusters.kubernetes.status.snapshot import read_seen
from elastic_training.clusters.kubernetes.watching.hub import cached_root
from elastic_training.clusters.kubernetes.watching.run_watch import updates
from elastic_training.clusters.place import Place, Scale
from elastic_training.clusters.types import Claim, RunRef, RunSummary, Update
from elastic_training.settings.pods import Pods
from elastic_training.settings.training_pool import PodPool

P = ParamSpec("P")
T = TypeVar("T")
_SAID_BY_READERS = (
    FailureKind.POD_REFUSED,
    FailureKind.START_TIMEOUT,
    FailureKind.MAX_WAIT_EXCEEDED,
    FailureKind.MAX_PAUSE_EXCEEDED,
    FailureKind.LAUNCHER_LOST,
    FailureKind.LAUNCHER_ERROR,
)
"""There may be no launcher that would end the run's pods."""
ATTEMPTS = 10
"""Writes of the root in a row that may meet a change by somebody else."""
_log = logging.getLogger(__name__)


class KubernetesCluster(Cluster):
    """Runs in one namespace.

    Args:
        connection_id: of an Airflow connection of type kubernetes.
        namespace: None: the connection's, or ``default``.
        pods: what runs are made of, or the pool whose workers they have; without it nothing can be claimed, only what
            is there be used.
        times: for tests.
    """

    def __init__(
        self,
        connection_id: str,
        namespace: str | None = None,
        pods: Pods | PodPool | None = None,
        times: Times | None = None,
    ) -> None:
        self._namespace = _Namespace(connection_id, namespace, pods, times or Times())
        super().__init__(self._namespace)

    @override
    async def claim(
        self, spec: RunSpec, owner: str, *, fresh: bool = False, before_takeover: BeforeTakeover | None = None
    ) -> Claim:
        """Claim the run, and remove half-created runs of others in the namespace."""
        claim = await super().claim(spec, owner, fresh=fresh, before_takeover=before_takeover)
        await self._namespace.sweep()
        return claim


def _asking(
    method: Callable[Concatenate[_Namespace, Client, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[_Namespace, P], Coroutine[Any, Any, T]]:
    """A method that asks the API server, by a client that is given to it."""

    @functools.wraps(method)
    async def called(self: _Namespace, /, *args: P.args, **kwargs: P.kwargs) -> T:
        access = await connection.access_of(self.connection)
        async with connection.client(access, self.namespace or access.namespace) as client:
            return await method(self, client, *args, **kwargs)

    return called


async def _term(client: Client, ref: RunRef) -> Term:
    """The term of the launcher that runs, where machines join. Raises Conflict if there is none, or InvalidDocument."""
    status = await client.find(CONFIG_MAPS, ObjectNames(ref.name).status)
    term = read_term(status) if status and of_run(status, ref.uid) else None
    launchers = await client.list(PODS, runobjects.selector(run=ref.name, uid=ref.uid, part=Part.LAUNCHER))
    if term is None or not any(pod.uid == term.holder and running(pod) for pod in launchers):
        raise Conflict(f"no launcher of the run {ref.name} listens now; try again")
    if not term.pin:
        raise Conflict(f"the launcher of the run {ref.name} is of a version that machines cannot join")
    check_door(term.address, term.pin)
    return term


def _size_in(root: Object, spec: RunSpec) -> int:
    """Workers that are asked for, of a run whose workers are a pool's."""
    size = runobjects.size_of(root.annotations, spec.workers.start)
    return size if isinstance(size, int) else spec.workers.start


class _Namespace(Place):
    """Its roots, worker sets and pods."""

    def __init__(self, connection_id: str, namespace: str | None, pods: Pods | PodPool | None, times: Times) -> None:
        self.connection = connection_id
        self.namespace = namespace
        self._pods = pods if isinstance(pods, Pods) else None
        self._pool = pods if isinstance(pods, PodPool) else None
        self._credentials: Mapping[str, str] = {}
        self.times = times

    @property
    def where(self) -> str:
        access = connection.remembered(self.connection)
        return f"in namespace {self.namespace or (access and access.namespace)} of {self.connection}"

    def worker_log(self, name: str, worker: str) -> str:  # noqa: ARG002  # pods' names are unique in the namespace
        return shlex.join(("kubectl", "logs", *self._container(worker)))

    def shell_in(self, worker: WorkerStatus) -> tuple[str, ...]:
        return ("kubectl", "exec", "-it", *self._container(worker.name), "--", "sh")

    def _container(self, worker: str) -> tuple[str, ...]:
        """Of the worker, as kubectl is told of it: no name that a status has is taken for an option."""
        access = connection.remembered(self.connection)
        namespace = self.namespace or (access.namespace if access else "default")
        pod = WorkerName.parse(worker).pod
        return (f"pod/{pod}", "--namespace", namespace, "--container", runobjects.WORKER_CONTAINER)

    def set_rank_credentials(self, credentials: Mapping[str, str]) -> None:
        self._credentials = dict(credentials)

    @_asking
    async def plan(self, client: Client, spec: RunSpec) -> str:
        pods, pool = self._pods, None
        if self._pool:
            found = await pools.planned(client, self._pool)
            spec, pods, pool = self._in_pool(spec, self._pool), found.pods, found.place
            pools.check_run(spec, found.settings)
        objects = await asyncio.to_thread(
            run_objects,
            spec,
            "",
            pods or self._own_pods(),
            namespace=client.namespace,
            credentials=self._credentials,
            mutate=mutated,
            pool=pool,
        )
        return await asyncio.to_thread(render, objects.all())

    @_asking
    async def read(self, client: Client, name: str) -> RunDocument | None:
        return await compare_and_set.find(client, name)

    @_asking
    async def create(self, client: Client, spec: RunSpec, owner: str) -> RunDocument:
        if self._pool is None:
            return await creation.create(client, spec, owner, self._own_pods(), self._credentials)
        pool = await pools.have_up(client, self._pool)
        spec = self._in_pool(spec, self._pool)
        pools.check_run(spec, pool.settings)
        confirm = functools.partial(pools.confirm, client, pool)
        return await creation.create(client, spec, owner, pool.pods, self._credentials, pool.place, confirm)

    @_asking
    async def change(self, client: Client, found: RunDocument, wanted: RunDocument) -> RunDocument:
        return await compare_and_set.change(client, found, wanted)

    @_asking
    async def remove(self, client: Client, found: RunDocument, *, forced: bool) -> bool:  # noqa: ARG002  # pods have their grace period
        await remove(client, found)
        return False

    @_asking
    async def list(self, client: Client) -> Iterable[RunSummary]:
        maps = await client.list(CONFIG_MAPS, runobjects.selector(), metadata=True)
        told, doubtful = summaries(maps, await client.list(PODS, runobjects.selector(part=Part.LAUNCHER)))
        for ref in doubtful:
            with suppress(RunNotFound):  # It has gone meanwhile.
                found = await compare_and_set.read(client, ref)
                told.append(found.summary(headline(judge(await read_seen(client, found), utc_now()))))
        return told

    def cached(self, ref: RunRef, *, trusted: bool) -> RunDocument | None:
        access = connection.remembered(self.connection)
        return None if access is None else cached_root(access, self.namespace or access.namespace, ref, trusted=trusted)

    @_asking
    async def observe(self, client: Client, found: RunDocument) -> Observed:
        seen = await read_seen(client, found)
        return Observed(judge(seen, utc_now()), launcher=any(map(running, seen.pods)))

    def watch(self, ref: RunRef, cursor: str | None, beat: float) -> AsyncGenerator[Update, None]:
        return updates(self.connection, self.namespace, ref, cursor, beat)

    @_asking
    @override
    async def tidy(self, client: Client, found: RunDocument) -> None:
        """Delete the run's Job and ReplicaSet, and keep its documents."""
        seen = await read_seen(client, found)
        status = judge(seen, utc_now())
        forsaken = found.cancelled is not None and not status.phase.final and not any(map(running, seen.pods))
        if forsaken or status.failure in _SAID_BY_READERS:
            await end_compute(client, found)

    def differing(self, found: RunDocument, spec: RunSpec) -> tuple[str, ...]:
        if self._pool:  # Its pods are there already, and may be other ones than when the run was created.
            return super().differing(found, self._in_pool(spec, self._pool))
        version: RootVersion = found.version
        same_pods = version.pods in (None, pods_digest(self._own_pods()))
        return super().differing(found, spec) + (() if same_pods else ("pods",))

    @_asking
    async def scale(self, client: Client, name: str) -> Scale:
        root = await client.find(CONFIG_MAPS, name)
        if root is not None and of_run(root) and (run := document(root).spec).pool:
            computes = await client.find(JOBS, ObjectNames(name).launcher)
            return Scale(_size_in(root, run), root.version) if computes else Scale(0)
        found = await client.find(REPLICA_SETS, ObjectNames(name).worker, "scale")
        return Scale(0) if found is None else Scale(found.spec.get("replicas", 0), found.version)

    @_asking
    async def resize(self, client: Client, found: RunDocument, scale: Scale, workers: int) -> None:
        if scale.version is None:
            raise RunNotFound(f"the run {found.ref.name} has no worker set any more")
        if found.spec.pool:  # Its root changes for other reasons, too.
            root = await client.get(CONFIG_MAPS, found.ref.name)
            if not of_run(root, found.ref.uid) or _size_in(root, found.spec) != scale.workers:
                raise Conflict(f"the size of {found.ref.name} has changed")
            annotations = {runobjects.SIZE: str(workers)}
            metadata = {"uid": root.uid, "resourceVersion": root.version, "annotations": annotations}
            await client.patch(CONFIG_MAPS, root.name, {"metadata": metadata})
            return
        patch = {"metadata": {"resourceVersion": scale.version}, "spec": {"replicas": workers}}
        await client.patch(REPLICA_SETS, ObjectNames(found.ref.name).worker, patch, "scale")

    @_asking
    @override
    async def reclaim(self, client: Client, found: RunDocument, worker: str, grace: timedelta) -> bool:
        """Delete the worker's pod, with that grace period."""
        pod = await client.find(PODS, WorkerName.parse(worker).pod)
        if pod is None or not (of_run(pod, found.ref.uid) or await self._lends(client, found, pod)):
            return False
        await client.delete(PODS, pod.name, uid=pod.uid, grace=int(grace.total_seconds()))
        return True

    @staticmethod
    def _in_pool(spec: RunSpec, pool: PodPool) -> RunSpec:
        return spec if spec.pool and spec.pool.name == pool.name else replace(spec, pool=PoolSpec(pool.name))

    async def _lends(self, client: Client, found: RunDocument, pod: Pod) -> bool:
        """Whether it is a pod of the pool that a run is in, and has an agent of that run."""
        if found.spec.pool is None or pod.labels.get(POOL_LABEL) != found.spec.pool.name:
            return False
        workers = judge(await read_seen(client, found), utc_now()).workers
        return any(WorkerName.parse(each.name).pod == pod.name and not each.state.gone for each in workers)

    @_asking
    @override
    async def join_command(self, client: Client, found: RunDocument, lifetime: timedelta) -> str:
        name, term = found.ref.name, await _term(client, found.ref)
        token = JoinToken.create(bytes.fromhex(term.pin))
        offered = OfferedToken(token.digest, utc_now() + lifetime, term.number)
        for _ in range(ATTEMPTS):
            wanted = (present := await compare_and_set.read(client, found.ref)).with_token(offered, utc_now())
            with suppress(Conflict):  # Whoever waits for the run changes its root every few seconds.
                await compare_and_set.change(client, present, wanted)
                return join_command(name, term.address, runobjects.LAUNCHER_PORT, token.text())
        raise Conflict(f"the run {name} is changed by somebody all the time; try again")

    @_asking
    async def sweep(self, client: Client) -> None:
        """Remove what creators that have died left of other runs."""
        try:
            for name in await creation.sweep(client, utc_now()):
                _log.warning("Deleted what was left of the run %s, whose creator had died half way", name)
        except ElasticError as error:
            _log.warning("Could not look for runs whose creator has died: %s", error)

    def _own_pods(self) -> Pods:
        if self._pods is None:
            raise InvalidSettings("pods", "none are given", "Write pods=Pods(image=...) in the operator")
        return self._pods
