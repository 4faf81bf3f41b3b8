"""The root of a run: a ConfigMap whose annotations say who owns the run, who watches it, and what was asked of it.

As it was read: pure. :mod:`~elastic_training.clusters.kubernetes.compare_and_set` reads and changes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from elastic_runtime import runobjects
from elastic_runtime.documents import from_json
from elastic_runtime.errors import InvalidDocument, OwnershipLost
from elastic_runtime.spec import RunSpec
from elastic_training.clusters.base import RunRef
from elastic_training.clusters.document import StoredLogLease
from elastic_training.clusters.kubernetes import resources
from elastic_training.clusters.kubernetes.resources import Object


@dataclass(frozen=True)
class Root:
    """A root as it was read."""

    thing: Object

    @property
    def name(self) -> str:
        """The run's."""
        return resources.name_of(self.thing)

    @property
    def uid(self) -> str:
        """Kubernetes' own; see :attr:`ref` for the run's."""
        return resources.uid_of(self.thing)

    @property
    def version(self) -> str:
        """Its resourceVersion."""
        return resources.version_of(self.thing)

    @property
    def ref(self) -> RunRef:
        """Which incarnation it is."""
        return RunRef(self.name, resources.labels_of(self.thing).get(runobjects.UID_LABEL, ""))

    @property
    def created(self) -> datetime:
        """By the API server's clock."""
        return moment(self.thing["metadata"]["creationTimestamp"])

    @property
    def going(self) -> bool:
        """Whether it is being deleted."""
        return "deletionTimestamp" in self.thing["metadata"]

    @property
    def complete(self) -> bool:
        """Whether all objects of the run have been created."""
        return runobjects.COMPLETE in self._annotations

    @property
    def owner(self) -> str:
        """Whose the run is."""
        return self._annotations.get(runobjects.OWNER, "")

    @property
    def pods(self) -> str | None:
        """What :func:`~elastic_training.clusters.kubernetes.manifests.pods_digest` said of the run's pods."""
        return self._annotations.get(runobjects.PODS)

    @property
    def log_lease(self) -> StoredLogLease | None:
        """Who streams the log."""
        text = self._annotations.get(runobjects.LOG_LEASE)
        return None if text is None else from_json(StoredLogLease, text)

    @property
    def cancelled(self) -> str | None:
        """The reason, if somebody asked for the end."""
        return self._annotations.get(runobjects.CANCEL)

    @property
    def collected(self) -> bool:
        """Whether the result was taken."""
        return runobjects.COLLECTED in self._annotations

    @property
    def requests(self) -> list[str]:
        """Wishes for a size that were carried out, the newest last."""
        return [str(each) for each in json.loads(self._annotations.get(runobjects.REQUESTS, "[]"))]

    @cached_property
    def spec(self) -> RunSpec:
        """As created. Raises InvalidDocument."""
        try:
            return from_json(RunSpec, self.thing["data"][runobjects.SPEC_KEY])
        except KeyError:
            raise InvalidDocument(
                f"the ConfigMap {self.name} holds no {runobjects.SPEC_KEY}: it is not a run"
            ) from None

    @property
    def _annotations(self) -> Mapping[str, str]:
        return resources.annotations_of(self.thing)

    def check_owner(self, owner: str) -> None:
        """Raises OwnershipLost when somebody else owns it."""
        if self.owner != owner:
            raise OwnershipLost(f"the run {self.name} belongs to {self.owner} now")

    def check_log_lease(self, token: str) -> None:
        """Raises OwnershipLost when somebody else attends it, or is about to."""
        if self.log_lease is None or self.log_lease.token != token:
            raise OwnershipLost(f"somebody else watches the run {self.name} now")


def moment(text: str) -> datetime:
    """A time as Kubernetes writes it."""
    return datetime.fromisoformat(text)
