"""Laying a run down: its objects one after the other, the root first, so that deleting the root takes all back.

The order makes every moment at which the creator may be killed a harmless one. Before the Job there is nothing that
computes; from the Job on there is a launcher, which ends a run that nobody completes; and whoever claims the name
next, or any other run in the namespace, sweeps a root that stayed incomplete (:func:`sweep`).
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from elastic_runtime import certificates, runobjects
from elastic_runtime.clock import utc_now
from elastic_runtime.documents import time_to_text
from elastic_runtime.errors import Conflict, ElasticError, PermanentError, RetryableError, RunNotFound
from elastic_runtime.kubernetes.errors import AlreadyExists
from elastic_runtime.runobjects import Part
from elastic_runtime.spec import RunSpec
from elastic_training.clusters.document import RunDocument
from elastic_training.clusters.kubernetes import compare_and_set, resources, root
from elastic_training.clusters.kubernetes.api import Api
from elastic_training.clusters.kubernetes.manifests import Capabilities, RunObjects, run_objects
from elastic_training.clusters.kubernetes.removal import REMOVED, remove, until
from elastic_training.clusters.kubernetes.resources import (
    CONFIG_MAPS,
    DISRUPTION_BUDGETS,
    JOBS,
    NETWORK_POLICIES,
    REPLICA_SETS,
    SECRETS,
    Object,
)
from elastic_training.pods import Pods

UNFINISHED = timedelta(minutes=10)
"""A creator needs seconds. A root that is incomplete for so long has none any more, however wrong a clock may be."""
_PATIENCE, _PAUSE = 60.0, 0.5
"""Seconds for taking back what was made, and between two steps of it."""
_ORDER = (NETWORK_POLICIES, DISRUPTION_BUDGETS, JOBS, REPLICA_SETS)
_log = logging.getLogger(__name__)


def create(api: Api, spec: RunSpec, owner: str, pods: Pods) -> RunDocument:
    """Lay the run down, whole, or leave nothing of it.

    Raises:
        InvalidSettings: a setting cannot work, or the server does not accept it; what had been made is deleted.
        AlreadyExists: there is a run of that name.
        ElasticError: the server refuses; what had been made is deleted.
    """
    capabilities = Capabilities(disruption_budgets=api.serves(DISRUPTION_BUDGETS))
    objects = run_objects(spec, owner, pods, namespace=api.namespace, capabilities=capabilities)
    manifest = objects.root()
    manifest["metadata"]["annotations"][runobjects.LEASE] = time_to_text(utc_now())
    try:
        made = root.document(api.create(CONFIG_MAPS, manifest))
    except AlreadyExists:
        made = _created_before(api, spec)
    try:
        return _complete(api, made, objects)
    except ElasticError as error:
        _take_back(api, made, error)
        raise


def _created_before(api: Api, spec: RunSpec) -> RunDocument:
    """What there is, if this very call has made it and the answer was lost. Raises AlreadyExists, or PermanentError."""
    thing = api.get(CONFIG_MAPS, spec.name)
    if not root.of_run(thing):
        raise PermanentError(
            f"the ConfigMap {spec.name} in namespace {api.namespace} is not of a training run. Rename it"
        )
    found = root.document(thing)
    if found.ref.uid != spec.uid or found.going:
        raise AlreadyExists(f"there is a run {spec.name} in namespace {api.namespace}")
    return found


def _complete(api: Api, made: RunDocument, objects: RunObjects) -> RunDocument:
    owner: str = made.version.uid
    answers = [_create_child(api, owner, each) for each in objects.first(owner, _certificates())]
    address = next(answer["spec"]["clusterIP"] for answer in answers if answer["kind"] == "Service")
    for manifest in in_order(objects.rest(owner, address)):
        _create_child(api, owner, manifest)
    return compare_and_set.insist(api, made, replace(made, complete=True))


def in_order(manifests: Iterable[Object]) -> list[Object]:
    """As they are best created: the launcher before its workers, which would wait for it for ever."""
    return sorted(manifests, key=lambda manifest: _ORDER.index(resources.kind_of(manifest)))


def _create_child(api: Api, owner: str, manifest: Object) -> Object:
    kind, name = resources.kind_of(manifest), resources.name_of(manifest)
    try:
        return api.create(kind, manifest)
    except AlreadyExists:
        if kind == SECRETS:
            # Which Airflow may make and not read. No pod has seen it yet.
            api.delete(kind, name)
            return api.create(kind, manifest)
        there = api.get(kind, name)
        if owner in [each["uid"] for each in there["metadata"].get("ownerReferences") or []]:
            return there  # The answer to an earlier attempt was lost.
        raise PermanentError(
            f"{kind.plural} {name} in namespace {api.namespace} is there and belongs to no run: somebody has kept it "
            "from being deleted with its run, or made it. Delete it"
        ) from None


def _take_back(api: Api, made: RunDocument, because: ElasticError) -> None:
    trouble: ElasticError | None = None
    for _ in until(_PATIENCE, _PAUSE):
        try:
            there = compare_and_set.find(api, made.ref.name)
            if there is None or there.ref != made.ref or there.going:
                return
            remove(api, there)
        except RetryableError as error:
            trouble = error
    _log.warning("%s; and %s, of which something is left, could not be removed: %s", because, made.ref.name, trouble)


def sweep(api: Api, now: datetime) -> list[str]:
    """Remove the runs of this namespace that somebody has begun to create, or to remove, and not finished.

    Returns:
        Their names.
    """
    swept = []
    for thing in api.list(CONFIG_MAPS, runobjects.selector(part=Part.ROOT)):
        found = root.document(thing)
        begun = not found.complete or found.cancelled == REMOVED
        if begun and not found.going and now > found.created + UNFINISHED:
            try:
                remove(api, found)
            except (Conflict, RunNotFound):
                continue
            swept.append(found.ref.name)
    return swept


def _certificates() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "tls"
        certificates.create(place)
        return {path.name: path.read_bytes() for path in place.iterdir()}
