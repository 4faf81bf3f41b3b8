"""Pools in pods of a namespace: brought up, resized, listed, and taken down."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from uuid import uuid4

from elastic_runtime.clock import utc_now
from elastic_runtime.documents import from_json, time_to_text, to_json
from elastic_runtime.errors import (
    ClusterUnavailable,
    Conflict,
    ElasticError,
    InvalidDocument,
    InvalidSettings,
    PermanentError,
    RetryableError,
    RunNotFound,
)
from elastic_runtime.kubernetes.client import Client
from elastic_runtime.kubernetes.errors import AlreadyExists
from elastic_runtime.kubernetes.objects import Object, moment
from elastic_runtime.kubernetes.resources import (
    CONFIG_MAPS,
    PODS,
    REPLICA_SETS,
    SERVICES,
)
from elastic_runtime.pool.folder import VALIDITY
from elastic_runtime.pool.pods import objects
from elastic_runtime.pool.pods.objects import PoolNames, PoolPart
from elastic_runtime.pool.settings import PoolSettings
from elastic_runtime.pool.status import PoolStatus
from elastic_runtime.retry import within
from elastic_runtime.run.pool import check_pool_name
from elastic_runtime.run.runobjects import COMPLETE, MANAGED_BY_LABEL, PART_LABEL, UID_LABEL, Part, selector
from elastic_runtime.run.runobjects import PODS as PODS_DIGEST
from elastic_runtime.run.spec import RunSpec
from elastic_training.clusters.kubernetes import connection
from elastic_training.clusters.kubernetes.children import certificate_files, create_children
from elastic_training.clusters.kubernetes.documents import compare_and_set
from elastic_training.clusters.kubernetes.manifests.mutation import mutated
from elastic_training.clusters.kubernetes.manifests.objects import NOT_KNOWN_YET, pods_digest
from elastic_training.clusters.kubernetes.manifests.pod import InPool
from elastic_training.clusters.kubernetes.manifests.pool import (
    LEAVE,
    PODS_KEY,
    pool_objects,
    read_launcher_settings,
)
from elastic_training.clusters.kubernetes.status.judgement import judge, summaries
from elastic_training.clusters.kubernetes.status.snapshot import read_seen
from elastic_training.redaction.values import remember_secrets
from elastic_training.settings.pods import Pods
from elastic_training.settings.training_pool import PodPool

COMING, GOING, PAUSE = 60.0, 90.0, 0.5
"""Seconds for another to complete a pool that it brings up, and for all objects of one to go; and between two looks."""
ATTEMPTS = 3
"""To have a pool up that others take back, or down."""


@dataclass(frozen=True, slots=True)
class StandingPool:
    """A pool that is up."""

    settings: PoolSettings
    place: InPool
    pods: Pods
    """Of launchers of its runs."""


async def have_up(client: Client, wanted: PodPool) -> StandingPool:
    """Have a pool up.

    Args:
        client: of its namespace.
        wanted: with settings and pods, to be brought up if it is not up.

    Raises:
        InvalidSettings: it is not up, or with other settings; or a setting cannot work.
        ElasticError: as the API server says.
    """
    for _ in range(ATTEMPTS):
        root = await _find(client, wanted.name)
        if root is not None:
            root = await _staying(client, root)
        if root is None:
            if wanted.settings is None:
                raise _not_up(client, wanted)
            root = await _bring_up(client, wanted)
        if (completed := await _completed(client, root)) is not None:
            _check_same(completed, wanted)
            return await _standing(client, completed)
    problem = f"others have begun to bring pool {wanted.name} up, and have taken it back. Their tasks say why"
    raise ClusterUnavailable(problem)


async def confirm(client: Client, standing: StandingPool) -> None:
    """Check that a pool is still up once the root of a run is there: who takes it down has not seen that before.

    Raises:
        Conflict: it is not.
        ElasticError: as the API server says.
    """
    name, uid = standing.place.name, standing.place.uid
    root = await _find(client, name)
    if root is None or root.going or _is_ending(root) or root.labels.get(UID_LABEL) != uid:
        raise Conflict(f"pool {name} is taken down. Try again")


async def planned(client: Client, wanted: PodPool) -> StandingPool:
    """Return the pool as it is, or as :func:`have_up` would bring it up; creates nothing. Raise as :func:`have_up`."""
    root = await _find(client, wanted.name)
    if root is not None and COMPLETE in root.annotations and not root.going:
        _check_same(root, wanted)
        return await _standing(client, root)
    if wanted.settings is None or wanted.pods is None:
        raise _not_up(client, wanted)
    made = await asyncio.to_thread(pool_objects, wanted, NOT_KNOWN_YET, client.namespace, mutated)
    pods = await asyncio.to_thread(lambda: read_launcher_settings(made.root()["data"][PODS_KEY]))
    return StandingPool(wanted.settings, InPool(wanted.name, NOT_KNOWN_YET, NOT_KNOWN_YET), pods)


def _check_same(root: Object, wanted: PodPool) -> None:
    """Raises InvalidSettings if a pool is up with other settings or pods than these."""
    found, name = _settings(root), f"pool:{wanted.name}@CLUSTER"
    if wanted.settings is not None and not found.agrees(wanted.settings):
        problem = f"pool {wanted.name} is up with other settings: {found.words}"
        raise InvalidSettings("pool", problem, f'Write these, or cluster="{name}"')
    if wanted.pods is not None and pods_digest(wanted.pods) != root.annotations.get(PODS_DIGEST):
        problem = f"pool {wanted.name} is up with other pods than these, such as another image"
        remedy = f'Run: elastic-training pool down {wanted.name} --on CLUSTER. Or write cluster="{name}"'
        raise InvalidSettings("pool.pods", problem, remedy)


def _not_up(client: Client, wanted: PodPool) -> InvalidSettings:
    problem = f"pool {wanted.name} is not up in namespace {client.namespace}"
    return InvalidSettings("cluster", problem, "Give a task the TrainingPool as its cluster")


async def _standing(client: Client, root: Object) -> StandingPool:
    name = root.labels.get(objects.POOL_LABEL, "")
    service = await client.get(SERVICES, PoolNames(name).keeper)
    try:
        pods = read_launcher_settings(root.data[PODS_KEY])
    except (KeyError, ValueError) as error:
        raise InvalidDocument(f"the ConfigMap {root.name} has no pods that could be read: {error}") from error
    place = InPool(name, root.labels.get(UID_LABEL, ""), service.spec["clusterIP"])
    return StandingPool(_settings(root), place, pods)


def check_run(spec: RunSpec, pool: PoolSettings) -> None:
    """Raises InvalidSettings if a run can have no workers of this pool."""
    pool.check_workers(spec.workers.minimum, spec.workers.slots, "resize the pool")
    if (leaves := spec.timing.leave_grace + spec.timing.stop_grace) > LEAVE:
        problem = f"a worker of a pool in pods has {LEAVE:.0f} s to leave, and this training takes up to {leaves:.0f}"
        raise InvalidSettings("recovery.leave_grace", problem, "Write less")


class NamespacePools:
    """The pools of a namespace.

    Args:
        connection_id: of an Airflow connection of type kubernetes.
        namespace: None: the connection's, or ``default``.
    """

    def __init__(self, connection_id: str, namespace: str | None = None) -> None:
        self._connection, self._namespace = connection_id, namespace

    async def have_up(self, wanted: PodPool) -> PoolSettings:
        """As :func:`have_up`."""
        async with self._asking() as client:
            return (await have_up(client, wanted)).settings

    async def resize(
        self, name: str, minimum: int | None = None, maximum: int | None = None, idle: float | None = None
    ) -> PoolSettings:
        """Change a pool that is up, while it is used. Its keeper sees it at once.

        Args:
            name: of the pool.
            minimum: workers that stay warm; None: as it is.
            maximum: most workers; None: as it is.
            idle: seconds after which workers above the minimum end; None: as it is.

        Raises:
            InvalidSettings: there is no such size.
            RunNotFound: it is not up.
            ElasticError: as the API server says.
        """
        async with self._asking() as client:
            return await _resize(client, name, minimum, maximum, idle)

    async def take_down(self, name: str) -> None:
        """End a pool that no run uses, and delete its objects.

        Raises:
            ClusterUnavailable: its objects have not gone in time.
            Conflict: runs use it.
            RunNotFound: it is not up.
            ElasticError: as the API server says.
        """
        async with self._asking() as client:
            await _take_down(client, name)

    async def list(self) -> list[tuple[PoolStatus, bool]]:
        """Return the pools by name, each with whether its keeper runs. Those that cannot be read are left out.

        Raises:
            ElasticError: as the API server says.
        """
        roots = f"{MANAGED_BY_LABEL}={objects.MANAGED_BY},{PART_LABEL}={PoolPart.ROOT}"
        found = []
        async with self._asking() as client:
            for root in sorted(await client.list(CONFIG_MAPS, roots), key=lambda each: each.name):
                with suppress(InvalidDocument, InvalidSettings, RunNotFound):
                    found.append((await _status(client, root), await _is_kept(client, root)))
        return found

    @asynccontextmanager
    async def _asking(self) -> AsyncIterator[Client]:
        access = await connection.access_of(self._connection)
        async with connection.client(access, self._namespace or access.namespace) as client:
            yield client


async def _resize(
    client: Client, name: str, minimum: int | None, maximum: int | None, idle: float | None
) -> PoolSettings:
    root = await _get(client, name)
    found = _settings(root)
    changed = found.resized(found.size.changed(minimum, maximum, idle))
    metadata = {"uid": root.uid, "resourceVersion": root.version, "annotations": {objects.SETTINGS: to_json(changed)}}
    await client.patch(CONFIG_MAPS, root.name, {"metadata": metadata})
    return changed


async def _take_down(client: Client, name: str) -> None:
    root = await _get(client, name)
    # Whoever creates a run sees this in the root, or is seen among the runs.
    await _annotate(client, root, objects.ENDING, time_to_text(utc_now()))
    try:
        if runs := await _runs(client, name):
            raise Conflict(f"pool {name} has runs: {', '.join(runs)}. End them first")
        await _delete(client, root)
    except ElasticError:
        with suppress(ElasticError):
            await _annotate(client, root, objects.ENDING, None)
        raise
    await _gone(client, root)


async def _runs(client: Client, pool: str) -> list[str]:
    """Return the names of runs in a pool that are not over, whatever its keeper knows."""
    of_pool = f",{objects.POOL_LABEL}={pool}"
    maps = await client.list(CONFIG_MAPS, selector() + of_pool, metadata=True)
    told, doubtful = summaries(maps, await client.list(PODS, selector(part=Part.LAUNCHER) + of_pool))
    found = [each.ref.name for each in told if not each.headline.phase.final]
    for ref in doubtful:
        with suppress(RunNotFound):
            run = await compare_and_set.read(client, ref)
            if not judge(await read_seen(client, run), utc_now()).phase.final:
                found.append(ref.name)
    return sorted(found)


async def _bring_up(client: Client, wanted: PodPool) -> Object:
    made = await asyncio.to_thread(pool_objects, wanted, uuid4().hex, client.namespace, mutated)
    remember_secrets(await asyncio.to_thread(made.all))
    try:
        root = await client.create(CONFIG_MAPS, made.root())
    except AlreadyExists:
        root = await client.get(CONFIG_MAPS, PoolNames(wanted.name).root)
        if root.labels.get(MANAGED_BY_LABEL) != objects.MANAGED_BY:
            problem = f"the ConfigMap {root.name} in namespace {client.namespace} is not of a pool. Rename it"
            raise PermanentError(problem) from None
        if root.labels.get(UID_LABEL) != made.uid:
            return root  # Somebody else brings it up.
    try:
        files = await asyncio.to_thread(certificate_files, VALIDITY)
        await create_children(client, made.first(root.uid, files), partial(made.rest, root.uid), "pool")
        return await _annotate(client, root, COMPLETE, "")
    except ElasticError:
        with suppress(ElasticError):
            await _delete(client, root)
        raise


async def _completed(client: Client, root: Object) -> Object | None:
    """Return the root once all objects of the pool are there. None: who has begun to bring it up takes it back."""
    async for _ in within(COMING, PAUSE):
        if COMPLETE in root.annotations and not root.going:
            return root
        try:
            found = await _get(client, root.labels.get(objects.POOL_LABEL, ""))
        except RunNotFound:
            return None
        except RetryableError:
            continue
        if found.uid != root.uid:  # It was taken down meanwhile, and is brought up again.
            return await _completed(client, found)
        root = found
    # Whoever has brought it up has died half way.
    with suppress(RunNotFound, Conflict):  # Another task that waited for it has deleted it.
        await _delete(client, root)
    raise ClusterUnavailable(f"the pool in {root.name} was never completed; what there is of it is deleted. Try again")


async def _delete(client: Client, root: Object) -> None:
    """Take away what computes first, and then all the rest with the root, as of a run."""
    names = PoolNames(root.labels.get(objects.POOL_LABEL, ""))
    for name in (names.worker, names.keeper):
        found = await client.find(REPLICA_SETS, name)
        if found is not None and root.uid in found.owners:
            with suppress(Conflict, RunNotFound):
                await client.delete(REPLICA_SETS, name, uid=found.uid)
    await client.delete(CONFIG_MAPS, root.name, uid=root.uid, propagation="Foreground")


async def _annotate(client: Client, root: Object, name: str, value: str | None) -> Object:
    """Set an annotation of a root; None: remove it. Raises RunNotFound or Conflict if it is not there any more."""
    return await client.patch(CONFIG_MAPS, root.name, {"metadata": {"uid": root.uid, "annotations": {name: value}}})


def _is_ending(root: Object) -> bool:
    """Whether somebody is about to take a pool down. One who died meanwhile does not count after some time."""
    try:
        since = moment(root.annotations.get(objects.ENDING, ""))
        return abs((utc_now() - since).total_seconds()) < GOING
    except (ValueError, TypeError):  # Somebody else has written it.
        return False


async def _staying(client: Client, root: Object) -> Object | None:
    """Return the root once nobody is about to take the pool down. None: it is gone. Raises ClusterUnavailable."""
    if not root.going and not _is_ending(root):
        return root
    async for _ in within(GOING, PAUSE):
        there = await client.find(CONFIG_MAPS, root.name)
        if there is None or there.uid != root.uid:
            return None
        if not there.going and not _is_ending(there):
            return there
    raise _still_there(root)


async def _gone(client: Client, root: Object) -> None:
    """Return once the objects of a pool that is being taken down are gone."""
    async for _ in within(GOING, PAUSE):
        there = await client.find(CONFIG_MAPS, root.name)
        if there is None or there.uid != root.uid:
            return
    raise _still_there(root)


def _still_there(root: Object) -> ClusterUnavailable:
    return ClusterUnavailable(f"the objects of {root.name} are still being deleted after {GOING:.0f} s")


async def _find(client: Client, name: str) -> Object | None:
    """Return the root of a pool. None: it is not up."""
    root = await client.find(CONFIG_MAPS, PoolNames(check_pool_name(name)).root)
    return root if root is not None and root.labels.get(MANAGED_BY_LABEL) == objects.MANAGED_BY else None


async def _get(client: Client, name: str) -> Object:
    if (root := await _find(client, name)) is None or root.going:
        raise RunNotFound(f"pool {name} is not up in namespace {client.namespace}")
    return root


def _settings(root: Object) -> PoolSettings:
    return from_json(PoolSettings, root.annotations.get(objects.SETTINGS, ""))


async def _status(client: Client, root: Object) -> PoolStatus:
    name = root.labels.get(objects.POOL_LABEL, "")
    status = await client.find(CONFIG_MAPS, PoolNames(name).status)
    text = status.data.get(objects.STATUS_KEY) if status else None
    return from_json(PoolStatus, text) if text else PoolStatus(_settings(root), 0, 0)


async def _is_kept(client: Client, root: Object) -> bool:
    keeper = await client.find(REPLICA_SETS, PoolNames(root.labels.get(objects.POOL_LABEL, "")).keeper)
    return keeper is not None and bool(keeper.raw.get("status", {}).get("readyReplicas"))
