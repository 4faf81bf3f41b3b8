"""Pod Security "restricted": no root, no privilege, no capability, the runtime's system call filter. Pure.

Fills in what a pod does not say itself. Only a pod template can say otherwise, and where its namespace enforces
"restricted", such a pod is refused by the API server.
"""

from __future__ import annotations

from typing import Any

from elastic_training.settings.pods import Pods


def restrict(spec: dict[str, Any], pods: Pods) -> None:
    """Every container of the pod, also those that a template has brought."""
    identity = {"runAsUser": pods.run_as_user, "runAsGroup": pods.run_as_group, "fsGroup": pods.fs_group}
    spec["securityContext"] = {
        "runAsNonRoot": True,
        **{key: int(value) for key, value in identity.items() if value is not None},
        "seccompProfile": {"type": "RuntimeDefault"},
        **(spec.get("securityContext") or {}),
    }
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        container["securityContext"] = {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            **(container.get("securityContext") or {}),
        }
