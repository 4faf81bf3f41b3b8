"""What nodes say of themselves, and that both distributions heed the same words."""

from __future__ import annotations

import pytest

from elastic_runtime.kubernetes.nodes import CAPACITY, SPOT, capacity_type, instance_type, spot_values
from elastic_runtime.kubernetes.objects import Node


def node(labels: dict[str, str]) -> Node:
    return Node({"metadata": {"name": "n", "labels": labels}})


@pytest.mark.parametrize(
    ("labels", "capacity", "kind"),
    [
        ({}, None, None),
        ({"karpenter.sh/capacity-type": "spot"}, "spot", None),
        ({"karpenter.sh/capacity-type": "reserved"}, "reserved", None),
        ({"eks.amazonaws.com/capacityType": "ON_DEMAND"}, "on-demand", None),
        ({"eks.amazonaws.com/capacityType": "SPOT"}, "spot", None),
        ({"cloud.google.com/gke-spot": "true"}, "spot", None),
        ({"cloud.google.com/gke-preemptible": "true"}, "spot", None),
        ({"kubernetes.azure.com/scalesetpriority": "spot"}, "spot", None),
        ({"kubernetes.azure.com/scalesetpriority": "regular"}, "on-demand", None),
        ({"node.alibabacloud.com/spot-strategy": "SpotAsPriceGo"}, "spot", None),
        ({"node.alibabacloud.com/spot-strategy": "NoSpot"}, "on-demand", None),
        ({"node.kubernetes.io/instance-type": "p4d.24xlarge"}, None, "p4d.24xlarge"),
        ({"beta.kubernetes.io/instance-type": "old", "node.kubernetes.io/instance-type": "new"}, None, "new"),
    ],
)
def test_labels_tell_capacity_and_kind(labels: dict[str, str], capacity: str | None, kind: str | None) -> None:
    assert (capacity_type(node(labels)), instance_type(node(labels))) == (capacity, kind)


def test_what_is_asked_for_as_spot_is_told_as_spot() -> None:
    assert spot_values().keys() == CAPACITY.keys()
    for key, values in spot_values().items():
        assert values
        assert {capacity_type(node({key: value})) for value in values} == {SPOT}
