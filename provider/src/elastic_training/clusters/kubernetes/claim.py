"""Claiming a name: adopt the run that is there, or end it and create another.

One decision after the other, each on a fresh look, each conditional on what was seen; so that of two who claim at once,
one creates and the other adopts.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta

from elastic_runtime import runobjects
from elastic_runtime.clock import utc_now
from elastic_runtime.errors import PermanentError
from elastic_runtime.spec import RunSpec
from elastic_runtime.status import Phase
from elastic_training.clusters.base import Claim, ClaimOutcome, differing
from elastic_training.clusters.kubernetes import compare_and_set, creation, diagnosis, resources
from elastic_training.clusters.kubernetes.api import Api
from elastic_training.clusters.kubernetes.manifests import pods_digest
from elastic_training.clusters.kubernetes.removal import remove
from elastic_training.clusters.kubernetes.resources import CONFIG_MAPS
from elastic_training.clusters.kubernetes.root import Root
from elastic_training.clusters.kubernetes.snapshot import read_seen
from elastic_training.clusters.kubernetes.status import judge
from elastic_training.pods import Pods

_YOUNG = timedelta(minutes=2)
"""A root that is incomplete and older than this is nobody's work in progress."""


@dataclass(frozen=True, slots=True)
class Times:
    """In seconds."""

    claim: float = 240.0
    """How long a claim waits for a run that is ending, for one that is just being created, and for the API server."""
    order: float = 60.0
    """How long of that the old run has to end in order, before it is deleted as it is."""
    delete: float = 180.0
    """How long a delete waits until all is gone."""
    creation: float = 30.0
    """A root that stays incomplete for so long while a claim looks on has no creator any more."""
    pause: float = 0.5
    """Between two looks."""


class Claiming:
    """One claim on its way.

    Args:
        api: of the namespace.
        spec: wanted.
        owner: whose the run will be.
        pods: of a run that has to be created.
        fresh: adopt nothing.
        times: for tests.
    """

    def __init__(self, api: Api, spec: RunSpec, owner: str, pods: Pods, *, fresh: bool, times: Times) -> None:
        self._api = api
        self._spec = spec
        self._owner = owner
        self._pods = pods
        self._fresh = fresh
        self._times = times
        self._before = ""
        self._seen: dict[tuple[str, str], float] = {}

    def step(self) -> Claim | None:
        """One look and what follows from it; None: look again.

        Raises:
            ElasticError: a RetryableError is worth another step.
        """
        thing = self._api.find(CONFIG_MAPS, self._spec.name)
        if thing is None:
            return self._create()
        found = Root(thing)
        if resources.labels_of(thing).get(runobjects.MANAGED_BY_LABEL) != runobjects.PREFIX:
            raise PermanentError(
                f"the ConfigMap {found.name} in namespace {self._api.namespace} is not of a training run. Rename it"
            )
        if found.going:
            remove(self._api, found)
            return None
        if found.complete:
            return self._settle(found)
        if found.ref.uid == self._spec.uid:
            return self._create()  # Ours, and the answer was lost.
        if utc_now() > found.created + _YOUNG or self._lasts("incomplete", found, self._times.creation):
            remove(self._api, found)
        return None

    def _create(self) -> Claim:
        ref = creation.create(self._api, self._spec, self._owner, self._pods)
        if self._before:
            return Claim(ref, ClaimOutcome.REPLACED, self._before)
        return Claim(ref, ClaimOutcome.CREATED, "no run of this name was there")

    def _settle(self, found: Root) -> Claim | None:
        """Adopt what is there, or have it end."""
        seen = read_seen(self._api, found)
        status = judge(seen, utc_now())
        uncollected = status.phase is Phase.SUCCEEDED and not found.collected
        running = not status.phase.final and found.cancelled is None
        if (running or uncollected) and not self._fresh:
            compare_and_set.patch(self._api, found, compare_and_set.owned(self._owner, found.log_lease))
            note = f"it is {status.phase}: {status.reason}"
            return Claim(found.ref, ClaimOutcome.ADOPTED, note, self._differing(found))
        self._before = self._before or f"before it {status.phase}: {status.reason}"
        can_end = any(diagnosis.running(pod) for pod in seen.pods)
        if status.phase.final or not can_end or self._lasts("ending", found, self._times.order):
            remove(self._api, found)
        elif found.cancelled is None:
            compare_and_set.patch(self._api, found, {runobjects.CANCEL: "a new try of the task takes its place"})
        return None

    def _differing(self, found: Root) -> tuple[str, ...]:
        same_pods = found.pods in (None, pods_digest(self._pods))
        return differing(found.spec, self._spec) + (() if same_pods else ("pods",))

    def _lasts(self, state: str, found: Root, limit: float) -> bool:
        """Whether the same root has been so for longer than that, as this claim has seen."""
        since = self._seen.setdefault((state, found.uid), time.monotonic())
        return time.monotonic() > since + limit
