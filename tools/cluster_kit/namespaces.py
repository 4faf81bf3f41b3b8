"""Namespaces in which nothing runs that Pod Security "restricted" refuses."""

from __future__ import annotations

import json
from pathlib import Path

from cluster_kit.shell import run


def make_restricted(kubeconfig: Path, name: str) -> None:
    """Create the namespace if it is not there, and have "restricted" enforced in it.

    By label, which Kubernetes obeys since 1.25. The lab's 1.20 ignores it: there a PodSecurityPolicy does the same in
    every namespace (``manifests/restricted-by-default.yaml``).
    """
    namespace = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
    }
    run("kubectl", f"--kubeconfig={kubeconfig}", "apply", "--filename=-", text=json.dumps(namespace))
