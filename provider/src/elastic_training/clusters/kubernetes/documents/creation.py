"""Laying a run down: its objects one after the other, the root first, so that deleting the root takes all back.

The order makes every moment at which the creator may be killed a harmless one. Before the Job there is nothing that
computes; from the Job on there is a launcher, which ends a run that nobody completes; and whoever claims the name
next, or any other run in the namespace, sweeps a root that stayed incomplete (:func:`sweep`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from elastic_runtime.clock import utc_now
from elastic_runtime.documents import time_to_text
from elastic_runtime.errors import Conflict, ElasticError, PermanentError, RetryableError, RunNotFound
from elastic_runtime.kubernetes.client import Client
from elastic_runtime.kubernetes.errors import AlreadyExists
from elastic_runtime.kubernetes.resources import CONFIG_MAPS, DISRUPTION_BUDGETS
from elastic_runtime.retry import within
from elastic_runtime.run import runobjects
from elastic_runtime.run.runobjects import Part
from elastic_runtime.run.shipment import content
from elastic_runtime.run.spec import RunSpec
from elastic_training.clusters.document import RunDocument
from elastic_training.clusters.kubernetes.children import certificate_files, create_children
from elastic_training.clusters.kubernetes.documents import compare_and_set, root
from elastic_training.clusters.kubernetes.documents.removal import REMOVED, remove
from elastic_training.clusters.kubernetes.manifests.mutation import mutated
from elastic_training.clusters.kubernetes.manifests.objects import Capabilities, RunObjects, run_objects
from elastic_training.clusters.kubernetes.manifests.pod import InPool
from elastic_training.redaction.values import remember_secrets
from elastic_training.settings.pods import Pods

UNFINISHED = timedelta(minutes=10)
"""A creator needs seconds. A root that is incomplete for so long has none any more, however wrong a clock may be."""
_UNDO_TIMEOUT, _PAUSE = 60.0, 0.5
"""Seconds for taking back what was made, and between two steps of it."""
_log = logging.getLogger(__name__)


async def create(
    client: Client,
    spec: RunSpec,
    owner: str,
    pods: Pods,
    credentials: Mapping[str, str] | None = None,
    pool: InPool | None = None,
    confirm: Callable[[], Awaitable[None]] | None = None,
) -> RunDocument:
    """Lay the run down, whole, or leave nothing of it; the arguments are those of :func:`run_objects`.

    ``confirm`` is called when others can see the run's root, before all else is created; it may raise an ElasticError.

    Raises:
        InvalidSettings: a setting cannot work, or the server does not accept it; what had been made is deleted.
        AlreadyExists: there is a run of that name.
        ElasticError: the server refuses; what had been made is deleted.
    """
    capabilities = Capabilities(disruption_budgets=await client.serves(DISRUPTION_BUDGETS))
    objects = await asyncio.to_thread(
        run_objects,
        spec,
        owner,
        pods,
        namespace=client.namespace,
        capabilities=capabilities,
        credentials=credentials,
        mutate=mutated,
        pool=pool,
    )
    # When the server refuses one, its words quote what stands in it.
    remember_secrets(await asyncio.to_thread(objects.all))
    manifest = objects.root()
    manifest["metadata"]["annotations"][runobjects.LEASE] = time_to_text(utc_now())
    try:
        made = root.document(await client.create(CONFIG_MAPS, manifest))
    except AlreadyExists:
        made = await _created_before(client, spec)
    try:
        if confirm:
            await confirm()
        return await _complete(client, made, objects)
    except ElasticError as error:
        await _take_back(client, made, error)
        raise


async def _created_before(client: Client, spec: RunSpec) -> RunDocument:
    """What there is, if this very call has made it and the answer was lost. Raises AlreadyExists, or PermanentError."""
    thing = await client.get(CONFIG_MAPS, spec.name)
    if not root.of_run(thing):
        raise PermanentError(
            f"the ConfigMap {spec.name} in namespace {client.namespace} is not of a training run. Rename it"
        )
    found = root.document(thing)
    if found.ref.uid != spec.uid or found.going:
        raise AlreadyExists(f"there is a run {spec.name} in namespace {client.namespace}")
    return found


async def _complete(client: Client, made: RunDocument, objects: RunObjects) -> RunDocument:
    owner: str = made.version.uid
    files = await asyncio.to_thread(certificate_files, signs=objects.spec.join is not None)
    if scripts := objects.spec.scripts:
        files[runobjects.SCRIPTS_KEY] = content(scripts)
    await create_children(client, objects.first(owner, files), partial(objects.rest, owner), "run")
    return await compare_and_set.change_or_confirm(client, made, replace(made, complete=True))


async def _take_back(client: Client, made: RunDocument, because: ElasticError) -> None:
    trouble: ElasticError | None = None
    async for _ in within(_UNDO_TIMEOUT, _PAUSE):
        try:
            there = await compare_and_set.find(client, made.ref.name)
            if there is None or there.ref != made.ref or there.going:
                return
            await remove(client, there)
        except RetryableError as error:
            trouble = error
    _log.warning("%s; and %s, of which something is left, could not be removed: %s", because, made.ref.name, trouble)


async def sweep(client: Client, now: datetime) -> list[str]:
    """Remove the runs of this namespace that somebody has begun to create, or to remove, and not finished.

    Returns:
        Their names.
    """
    swept = []
    for thing in await client.list(CONFIG_MAPS, runobjects.selector(part=Part.ROOT)):
        found = root.document(thing)
        begun = not found.complete or found.cancelled == REMOVED
        if begun and not found.going and now > found.created + UNFINISHED:
            try:
                await remove(client, found)
            except (Conflict, RunNotFound):
                continue
            swept.append(found.ref.name)
    return swept
