"""What the nodes are that workers run on, by the labels that the clouds put on them. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from elastic_runtime.launcher.platform import Machine

SPOT, ON_DEMAND = "spot", "on-demand"
_INSTANCE_TYPE = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
_CAPACITY: Mapping[str, Mapping[str, str]] = {
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
"""Label: what its values mean. A value that is not here (``reserved``, ``CAPACITY_BLOCK``) is told as it is."""


def machine_of(labels: Mapping[str, str]) -> Machine:
    """From the labels of a node; what they do not say is None."""
    capacity = next((meant.get(labels[key], labels[key]) for key, meant in _CAPACITY.items() if key in labels), None)
    return Machine(capacity, next((labels[key] for key in _INSTANCE_TYPE if key in labels), None))
