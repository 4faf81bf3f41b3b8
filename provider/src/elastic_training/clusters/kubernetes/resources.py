"""Kinds of objects that a run is made of, and where the API server keeps them. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]
"""As the API server speaks: JSON, read into dicts and lists. The clients' own models cost more to build than to use."""

MERGE_PATCH = "application/merge-patch+json"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of object in a namespace."""

    group: str
    """``/api/v1``, or ``/apis/GROUP/VERSION``."""
    plural: str
    """As in its path."""

    def path(self, namespace: str, name: str | None = None, part: str | None = None) -> str:
        """Of all objects, of one, or of a part of one (``log``, ``scale``)."""
        return "/".join(word for word in (self.group, "namespaces", namespace, self.plural, name, part) if word)


CONFIG_MAPS = Kind("/api/v1", "configmaps")
SECRETS = Kind("/api/v1", "secrets")
SERVICES = Kind("/api/v1", "services")
PODS = Kind("/api/v1", "pods")
EVENTS = Kind("/api/v1", "events")
JOBS = Kind("/apis/batch/v1", "jobs")
REPLICA_SETS = Kind("/apis/apps/v1", "replicasets")
NETWORK_POLICIES = Kind("/apis/networking.k8s.io/v1", "networkpolicies")
DISRUPTION_BUDGETS = Kind("/apis/policy/v1", "poddisruptionbudgets")

_BY_NAME: Mapping[tuple[str, str], Kind] = {
    ("v1", "ConfigMap"): CONFIG_MAPS,
    ("v1", "Secret"): SECRETS,
    ("v1", "Service"): SERVICES,
    ("batch/v1", "Job"): JOBS,
    ("apps/v1", "ReplicaSet"): REPLICA_SETS,
    ("networking.k8s.io/v1", "NetworkPolicy"): NETWORK_POLICIES,
    ("policy/v1", "PodDisruptionBudget"): DISRUPTION_BUDGETS,
}


def kind_of(manifest: Mapping[str, Any]) -> Kind:
    """Of a manifest."""
    return _BY_NAME[manifest["apiVersion"], manifest["kind"]]


def name_of(thing: Mapping[str, Any]) -> str:
    """Of an object."""
    return str(thing["metadata"]["name"])


def uid_of(thing: Mapping[str, Any]) -> str:
    """The one that Kubernetes has given it."""
    return str(thing["metadata"]["uid"])


def version_of(thing: Mapping[str, Any]) -> str:
    """Its resourceVersion: another one after every change."""
    return str(thing["metadata"]["resourceVersion"])


def labels_of(thing: Mapping[str, Any]) -> dict[str, str]:
    """Of an object."""
    return thing["metadata"].get("labels") or {}


def annotations_of(thing: Mapping[str, Any]) -> dict[str, str]:
    """Of an object."""
    return thing["metadata"].get("annotations") or {}
