"""Labels and taints of nodes, by clouds and autoscalers: capacity, kind of machine, end. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from elastic_runtime.kubernetes.objects import Node

SPOT, ON_DEMAND = "spot", "on-demand"
_INSTANCE_TYPE = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
CAPACITY: Mapping[str, Mapping[str, str]] = {
    "karpenter.sh/capacity-type": {"spot": SPOT, "on-demand": ON_DEMAND},
    "eks.amazonaws.com/capacityType": {"SPOT": SPOT, "ON_DEMAND": ON_DEMAND},
    "cloud.google.com/gke-spot": {"true": SPOT},
    "cloud.google.com/gke-preemptible": {"true": SPOT},
    "kubernetes.azure.com/scalesetpriority": {"spot": SPOT, "regular": ON_DEMAND},
    "node.alibabacloud.com/spot-strategy": {
        "NoSpot": ON_DEMAND,
        "SpotAsPriceGo": SPOT,
        "SpotWithPriceLimit": SPOT,
    },
}
"""Label: what its values mean. A value that is not here (``reserved``, ``CAPACITY_BLOCK``) is told as it is. Taints of
nodes that may be taken back use the same keys."""

_DRAIN = timedelta(seconds=120)
"""Before the end of a node that is about to be drained; its pods get deadlines of their own then, which count."""
ENDING_TAINTS: Mapping[str, timedelta] = {
    "aws-node-termination-handler/spot-itn": timedelta(seconds=120),
    "cloud.google.com/impending-node-termination": timedelta(seconds=15),
    "remediator.kubernetes.azure.com/unschedulable": timedelta(seconds=30),
    "karpenter.sh/disrupted": _DRAIN,
    "karpenter.sh/disruption": _DRAIN,  # before karpenter 1.0
    "ToBeDeletedByClusterAutoscaler": _DRAIN,
    "node.kubernetes.io/out-of-service": timedelta(0),
}
"""Key: time from the taint to the end. Not among them are those of nodes that may well stay: ``unschedulable``
(somebody looks after it), ``not-ready`` and ``unreachable`` (kubelet is silent; if its worker is, too, that shows
sooner).
"""


def capacity_type(node: Node) -> str | None:
    """``spot``, ``on-demand``, or what else the cloud calls it; None: it does not say."""
    labels = node.labels
    return next((meant.get(labels[key], labels[key]) for key, meant in CAPACITY.items() if key in labels), None)


def instance_type(node: Node) -> str | None:
    """The cloud's name for such machines; None: it does not say."""
    return next((node.labels[key] for key in _INSTANCE_TYPE if key in node.labels), None)


def spot_values() -> dict[str, list[str]]:
    """Per label, those of its values that mean capacity which the cloud may take back."""
    return {key: [value for value, kind in meant.items() if kind == SPOT] for key, meant in CAPACITY.items()}


def ending_taints(node: Node) -> set[str]:
    """Keys of the taints that say that this node is about to go."""
    return node.taints & ENDING_TAINTS.keys()
