"""Kinds of objects that a run is made of, and where the API server keeps them. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from elastic_runtime.kubernetes.objects import Event, Json, Node, Object, Pod

V = TypeVar("V", bound=Object)
Manifest = dict[str, Any]
"""Manifest of an object to be created."""


@dataclass(frozen=True, slots=True)
class Kind(Generic[V]):
    """Kind of Kubernetes objects: where its API is, and the view that wraps its objects."""

    group: str
    """``/api/v1``, or ``/apis/GROUP/VERSION``."""
    plural: str
    """Plural name, as in its path and in access rules."""
    view: type[V]
    namespaced: bool = True

    def path(self, namespace: str, name: str | None = None, part: str | None = None) -> str:
        """Return the path of all objects, of one, or of a part of one (``log``, ``scale``)."""
        where = ("namespaces", namespace) if self.namespaced else ()
        return "/".join(word for word in (self.group, *where, self.plural, name, part) if word)


CONFIG_MAPS = Kind("/api/v1", "configmaps", Object)
SECRETS = Kind("/api/v1", "secrets", Object)
SERVICES = Kind("/api/v1", "services", Object)
PODS = Kind("/api/v1", "pods", Pod)
EVENTS = Kind("/api/v1", "events", Event)
NODES = Kind("/api/v1", "nodes", Node, namespaced=False)
JOBS = Kind("/apis/batch/v1", "jobs", Object)
REPLICA_SETS = Kind("/apis/apps/v1", "replicasets", Object)
NETWORK_POLICIES = Kind("/apis/networking.k8s.io/v1", "networkpolicies", Object)
DISRUPTION_BUDGETS = Kind("/apis/policy/v1", "poddisruptionbudgets", Object)

_BY_NAME: Mapping[tuple[str, str], Kind[Object]] = {
    ("v1", "ConfigMap"): CONFIG_MAPS,
    ("v1", "Secret"): SECRETS,
    ("v1", "Service"): SERVICES,
    ("batch/v1", "Job"): JOBS,
    ("apps/v1", "ReplicaSet"): REPLICA_SETS,
    ("networking.k8s.io/v1", "NetworkPolicy"): NETWORK_POLICIES,
    ("policy/v1", "PodDisruptionBudget"): DISRUPTION_BUDGETS,
}


def kind_of(manifest: Json) -> Kind[Object]:
    """Return the kind of a manifest."""
    return _BY_NAME[manifest["apiVersion"], manifest["kind"]]
