"""``cluster="CONNECTION"`` or ``"CONNECTION/NAMESPACE"``: runs in pods of a Kubernetes cluster."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncGenerator, Callable, Coroutine
from datetime import datetime, timedelta
from typing import Any

from elastic_runtime import runobjects
from elastic_runtime.clock import utc_now
from elastic_runtime.documents import time_to_text
from elastic_runtime.errors import ClusterUnavailable, Conflict, ElasticError, InvalidSettings, RunNotFound
from elastic_runtime.runobjects import ObjectNames
from elastic_runtime.spec import RunSpec
from elastic_runtime.status import FailureKind, Status, WorkerState
from elastic_training.bridge import bridged
from elastic_training.clusters.base import (
    LOG_START,
    Claim,
    LogLease,
    RunRef,
    Update,
    check_size,
)
from elastic_training.clusters.cluster import Cluster
from elastic_training.clusters.kubernetes import compare_and_set, connection, creation, resources
from elastic_training.clusters.kubernetes.api import Api
from elastic_training.clusters.kubernetes.claim import Claiming, Times
from elastic_training.clusters.kubernetes.compare_and_set import Annotations
from elastic_training.clusters.kubernetes.diagnosis import running
from elastic_training.clusters.kubernetes.manifests import render, run_objects
from elastic_training.clusters.kubernetes.removal import end_compute, remove, until
from elastic_training.clusters.kubernetes.resources import CONFIG_MAPS, PODS, REPLICA_SETS
from elastic_training.clusters.kubernetes.root import Root
from elastic_training.clusters.kubernetes.run_watch import updates
from elastic_training.clusters.kubernetes.snapshot import read_launchers, read_status
from elastic_training.clusters.kubernetes.watch import cached_root
from elastic_training.pods import Pods

_PRESENT = (WorkerState.STARTING, WorkerState.READY, WorkerState.TRAINING, WorkerState.LEAVING)
_SAID_BY_READERS = (
    FailureKind.POD_REFUSED,
    FailureKind.START_TIMEOUT,
    FailureKind.MAX_WAIT_EXCEEDED,
    FailureKind.LAUNCHER_LOST,
)
"""There may be no launcher that would end the run's pods."""
_TRIES = 20
"""How often a size is set anew because somebody else has changed the worker set meanwhile."""
_log = logging.getLogger(__name__)


class BlockingKubernetes:
    """Runs in one namespace, for threads.

    Args:
        connection_id: of an Airflow connection of type kubernetes.
        namespace: None: the connection's, or ``default``.
        pods: what runs are made of; without it nothing can be claimed, only what is there be used.
        times: for tests.
    """

    def __init__(
        self,
        connection_id: str,
        namespace: str | None = None,
        pods: Pods | None = None,
        times: Times | None = None,
    ) -> None:
        self._connection = connection_id
        self._namespace = namespace
        self._pods = pods
        self._times = times or Times()
        self._tokens: dict[RunRef, str] = {}
        """Of the attendances that began here."""

    def claim(self, spec: RunSpec, owner: str, *, fresh: bool = False) -> Claim:
        """See :meth:`Cluster.claim`."""
        api = self._api
        claiming = Claiming(api, spec, owner, self._own_pods(), fresh=fresh, times=self._times)
        trouble: ElasticError | None = None
        for _ in until(self._times.claim, self._times.pause):
            try:
                if claim := claiming.step():
                    self._sweep(api)
                    return claim
            except (Conflict, RunNotFound):
                continue  # Somebody else was faster, or it went while it was looked at.
            except ClusterUnavailable as error:
                trouble = error
        raise ClusterUnavailable(
            f"the run {spec.name} in namespace {api.namespace} could not be claimed in {self._times.claim:g} s: "
            f"{trouble or 'the one before has been asked to end, and has not ended'}"
        )

    def plan(self, spec: RunSpec) -> str:
        """See :meth:`Cluster.plan`: the manifests, without secrets."""
        return render(run_objects(spec, "", self._own_pods(), namespace=self._api.namespace).all())

    def find(self, name: str) -> RunRef:
        """See :meth:`Cluster.find`."""
        found = Root(self._api.get(CONFIG_MAPS, ObjectNames(name).root))
        if not found.ref.uid:
            raise RunNotFound(f"the ConfigMap {name} is not part of a training run")
        return compare_and_set.checked(found, found.ref).ref

    def spec(self, ref: RunRef) -> RunSpec:
        """See :meth:`Cluster.spec`."""
        return compare_and_set.read(self._api, ref).spec

    def owner(self, ref: RunRef) -> str:
        """See :meth:`Cluster.owner`."""
        return compare_and_set.read(self._api, ref).owner

    def status(self, ref: RunRef) -> Status:
        """See :meth:`Cluster.status`."""
        api = self._api
        return read_status(api, compare_and_set.read(api, ref))

    def size(self, ref: RunRef) -> int:
        """See :meth:`Cluster.size`; 0 once the worker set is gone."""
        api = self._api
        scale = api.find(REPLICA_SETS, ObjectNames(ref.name).worker, "scale")
        compare_and_set.read(api, ref)  # After it: so it was this incarnation's.
        return 0 if scale is None else int(scale["spec"].get("replicas", 0))

    def set_size(self, ref: RunRef, workers: int, request: str) -> bool:
        """See :meth:`Cluster.set_size`."""
        api, name = self._api, ObjectNames(ref.name).worker
        for _ in range(_TRIES):
            scale = api.get(REPLICA_SETS, name, "scale")
            # After it: so that was this incarnation's, and its version is the condition for changing it.
            found = compare_and_set.read(api, ref)
            check_size(workers, found.spec.workers)
            if request in found.requests:
                return False
            version = {"resourceVersion": resources.version_of(scale)}
            try:
                api.patch(REPLICA_SETS, name, {"metadata": version, "spec": {"replicas": workers}}, "scale")
            except Conflict:
                continue
            # Killed before this line, the next call sets the same size once more; the other way round, it never would.
            compare_and_set.change(api, ref, lambda current: _with_request(current, request), known=found)
            return True
        raise ClusterUnavailable(f"the worker set of {ref.name} is changed by others all the time")

    def reclaim(self, ref: RunRef, worker: str, grace: timedelta) -> datetime:
        """See :meth:`Cluster.reclaim`: deletes the worker's pod, with that grace period."""
        api = self._api
        present = [found.name for found in self.status(ref).workers if found.state in _PRESENT]
        pod = api.find(PODS, runobjects.pod_of(worker)) if worker in present else None
        if pod is None or resources.labels_of(pod).get(runobjects.UID_LABEL) != ref.uid:
            known = ", ".join(present) or "none"
            raise InvalidSettings("worker", f"the run {ref.name} has no worker {worker!r}", f"Name one of: {known}")
        deadline = utc_now() + grace
        api.delete(PODS, resources.name_of(pod), uid=resources.uid_of(pod), grace=int(grace.total_seconds()))
        return deadline

    def cancel(self, ref: RunRef, reason: str, owner: str) -> None:
        """See :meth:`Cluster.cancel`. A launcher that does not run cannot end its run: then its Job is deleted."""
        api = self._api

        def decide(found: Root) -> Annotations | None:
            found.check_owner(owner)
            return None if found.cancelled is not None else {runobjects.CANCEL: reason}

        try:
            self._end_without_launcher(api, compare_and_set.change(api, ref, decide))
        except RunNotFound:
            return

    def delete(self, ref: RunRef, owner: str) -> None:
        """See :meth:`Cluster.delete`."""
        trouble: ElasticError | None = None
        for _ in until(self._times.delete, self._times.pause):
            try:
                if self._removed(ref, owner):
                    return
            except (Conflict, RunNotFound):
                continue  # Somebody else was faster: look again.
            except ClusterUnavailable as error:
                trouble = error
        raise ClusterUnavailable(
            f"the run {ref.name} is being deleted, and not gone after {self._times.delete:g} s: "
            f"{trouble or 'see what its pods wait for'}"
        )

    def _removed(self, ref: RunRef, owner: str) -> bool:
        """Whether it is gone; if not, one more step is taken."""
        api = self._api
        thing = api.find(CONFIG_MAPS, ObjectNames(ref.name).root)
        if thing is None or (found := Root(thing)).ref != ref:
            return True
        if not found.going:
            found.check_owner(owner)
        remove(api, found)
        return False

    def collect(self, ref: RunRef, owner: str) -> None:
        """See :meth:`Cluster.collect`. What a launcher that never ran cannot end is deleted; documents stay."""
        api = self._api

        def decide(found: Root) -> Annotations | None:
            found.check_owner(owner)
            return None if found.collected else {runobjects.COLLECTED: time_to_text(utc_now())}

        try:
            found = compare_and_set.change(api, ref, decide)
            if read_status(api, found).failure in _SAID_BY_READERS:
                end_compute(api, found)
        except RunNotFound:
            return

    def renew_lease(self, ref: RunRef, token: str) -> None:
        """See :meth:`Cluster.renew_lease`."""

        def decide(found: Root) -> Annotations:
            found.check_log_lease(token)
            return compare_and_set.lease()

        compare_and_set.change(self._api, ref, decide, known=self._cached(ref))

    def take_log_lease(self, ref: RunRef, owner: str) -> LogLease:
        """See :meth:`Cluster.take_log_lease`."""
        token = secrets.token_hex(8)
        mine = LogLease(token, LOG_START)

        def decide(found: Root) -> Annotations:
            nonlocal mine
            found.check_owner(owner)
            cursor = found.log_lease.cursor if found.log_lease else LOG_START
            mine = LogLease(token, cursor, found.spec.timing.lease)
            return compare_and_set.leased_log(token, mine.cursor)

        compare_and_set.change(self._api, ref, decide)
        self._tokens[ref] = token
        return mine

    def advance(self, ref: RunRef, token: str, cursor: str) -> None:
        """See :meth:`Cluster.advance`."""

        def decide(found: Root) -> Annotations:
            found.check_log_lease(token)
            return compare_and_set.leased_log(token, cursor)

        compare_and_set.change(self._api, ref, decide, known=self._cached(ref))

    def log_lease_holder(self, ref: RunRef) -> str | None:
        """See :meth:`Cluster.log_lease_holder`. From this process's watch, if it has one."""
        found = self._cached(ref, trusted=True)
        if found is None or found.log_lease is None or found.log_lease.token != self._tokens.get(ref):
            # Or the log_lease that began here has not come round through the watch yet, on a busy machine.
            found = compare_and_set.read(self._api, ref)
        return found.log_lease.token if found.log_lease else None

    def watch(self, ref: RunRef, cursor: str | None, beat: float) -> AsyncGenerator[Update, None]:
        """See :meth:`Cluster.watch`."""
        return updates(self._connection, self._namespace, ref, cursor, beat)

    @property
    def _api(self) -> Api:
        access = connection.resolve(self._connection)
        return connection.api(access, self._namespace or access.namespace)

    def _cached(self, ref: RunRef, *, trusted: bool = False) -> Root | None:
        access = connection.resolve(self._connection)
        return cached_root(access, self._namespace or access.namespace, ref, trusted=trusted)

    def _own_pods(self) -> Pods:
        if self._pods is None:
            raise InvalidSettings("pods", "none are given", "Write pods=Pods(image=...) in the operator")
        return self._pods

    def _end_without_launcher(self, api: Api, found: Root) -> None:
        _, pods = read_launchers(api, found)
        if not any(running(pod) for pod in pods) and not read_status(api, found).phase.final:
            end_compute(api, found)

    @staticmethod
    def _sweep(api: Api) -> None:
        try:
            for name in creation.sweep(api, utc_now()):
                _log.warning("Deleted what was left of the run %s, whose creator had died half way", name)
        except ElasticError as error:
            _log.warning("Could not look for runs whose creator has died: %s", error)


def _with_request(found: Root, request: str) -> Annotations:
    names = [*found.requests, request][-runobjects.MAX_REQUESTS :]
    return {runobjects.REQUESTS: json.dumps(names)}


class KubernetesCluster(Cluster):
    """Runs in one namespace; arguments as of :class:`BlockingKubernetes`, whose methods it calls in threads."""

    def __init__(
        self,
        connection_id: str,
        namespace: str | None = None,
        pods: Pods | None = None,
        times: Times | None = None,
    ) -> None:
        self._connection = connection_id
        self.blocking = BlockingKubernetes(connection_id, namespace, pods, times)

    def watch(self, ref: RunRef, cursor: str | None, beat: float) -> AsyncGenerator[Update, None]:
        """See :meth:`Cluster.watch`."""
        return self.blocking.watch(ref, cursor, beat)


def _threaded(name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
    async def called(self: KubernetesCluster, *args: Any, **kwargs: Any) -> Any:
        if not bridged():
            await connection.prepare(self._connection)
        return await asyncio.to_thread(getattr(self.blocking, name), *args, **kwargs)

    return called


for _name in (
    *("plan", "claim", "find", "spec", "owner", "status", "size", "set_size", "reclaim", "cancel", "collect", "delete"),
    *("take_log_lease", "renew_lease", "advance", "log_lease_holder"),
):
    setattr(KubernetesCluster, _name, _threaded(_name))
