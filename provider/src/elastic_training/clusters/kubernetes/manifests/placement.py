"""On which nodes pods may run: capacity that the cloud may take back, and nodes that are gone. Pure.

Works on finished pod specs, and adds to what a user or a pod template has said, never instead of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from elastic_runtime.kubernetes.nodes import spot_values
from elastic_training.settings.machines import INSTANCE_TYPE, Machine

NODE_LOSS_SECONDS = 10
"""A pod on a node that has gone silent is replaced so long after Kubernetes has noticed (which takes it 40 s or so).
Its default of 300 s suits services; a silent worker has been lost to its training by then anyway."""
SPOT = spot_values()
"""How clouds and autoscalers label nodes that may be taken back; their taints use the same keys."""
_NODE_LOSS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def onto_spot(spec: dict[str, Any]) -> None:
    """Only nodes that carry one of the labels, whatever their taints say about that."""
    _require_any(spec, [{"matchExpressions": [each]} for each in _spot("In")])
    _tolerate(spec, [_tolerance(key) for key in SPOT])


def off_spot(spec: dict[str, Any]) -> None:
    """Only nodes that carry none of the labels; unless the pod asks for one of them itself."""
    if not SPOT.keys() & _keys(spec):
        _require_any(spec, [{"matchExpressions": _spot("NotIn")}])


def _spot(operator: str) -> list[dict[str, Any]]:
    """``In``: nodes that may be taken back. ``NotIn``: all others, those without the labels included."""
    return [{"key": key, "operator": operator, "values": values} for key, values in SPOT.items()]


def tolerate_devices(spec: dict[str, Any], resource: str) -> None:
    """The taint that keeps others off nodes with devices, as Kubernetes' plugin ExtendedResourceToleration does it."""
    _tolerate(spec, [_tolerance(resource)])


def onto_machine(spec: dict[str, Any], machine: Machine) -> None:
    """Only nodes of that type; unless the pod names an instance type itself."""
    if INSTANCE_TYPE not in _keys(spec):
        spec["nodeSelector"] = {**machine.selector, **(spec.get("nodeSelector") or {})}
    _tolerate(spec, [_tolerance(key) for key in machine.tolerations])


def leave_lost_nodes(spec: dict[str, Any]) -> None:
    """Soon, unless the pod says itself how long it wants to wait."""
    named = {toleration.get("key") for toleration in spec.get("tolerations", ())}
    _tolerate(
        spec,
        [
            {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": NODE_LOSS_SECONDS}
            for key in _NODE_LOSS
            if key not in named
        ],
    )


def _tolerance(key: str) -> dict[str, Any]:
    return {"key": key, "operator": "Exists", "effect": "NoSchedule"}


def _tolerate(spec: dict[str, Any], tolerations: Sequence[dict[str, Any]]) -> None:
    present = spec.setdefault("tolerations", [])
    present.extend(toleration for toleration in tolerations if toleration not in present)


def _require_any(spec: dict[str, Any], terms: Sequence[dict[str, Any]]) -> None:
    """One of the terms *and* what is required already.

    Terms of a node selector are alternatives, so "and" is each of the old with each of the new.
    """
    affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {}).setdefault(_REQUIRED, {})
    before = affinity.get("nodeSelectorTerms") or [{}]
    affinity["nodeSelectorTerms"] = [_both(old, new) for old in before for new in terms]


def _both(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    expressions = [*old.get("matchExpressions", ()), *new["matchExpressions"]]
    return {**old, "matchExpressions": expressions}


def _keys(spec: Mapping[str, Any]) -> set[str]:
    """Labels of nodes that the pod asks for."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    terms = (affinity.get(_REQUIRED) or {}).get("nodeSelectorTerms") or ()
    expressions = [expression for term in terms for expression in term.get("matchExpressions", ())]
    return {*(spec.get("nodeSelector") or {}), *(str(expression.get("key")) for expression in expressions)}
