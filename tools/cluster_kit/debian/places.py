"""Where the lab keeps things, and the addresses and ports that it uses."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

VERSION = "1.20.2"
"""Of Kubernetes, as Debian 12 has it."""

# Ranges and ports that nothing usual on a developer's machine has.
POD_NETWORK = "10.213.0.0/16"
SERVICE_NETWORK = "10.214.0.0/16"
SERVICE_ADDRESS = "10.214.0.1"
"""Of the service ``kubernetes.default``."""
HOST_ADDRESS = "10.213.255.1"
"""This machine, for the API server, the kubelets, and for pods that want a server on this machine."""
API_PORT = 26443
ETCD_PORT, ETCD_PEER_PORT = 12379, 12380
FIRST_KUBELET_PORT = 20250


def pod_subnet(index: int) -> str:
    """Addresses of the pods of the node with this number."""
    return f"10.213.{index}.0/24"


def pod_gateway(index: int) -> str:
    """This machine's address in that subnet."""
    return f"10.213.{index}.1"


def bridge(index: int) -> str:
    """Network interface of this machine that the node's pods hang on."""
    return f"et-lab{index}"


HOST_BRIDGE = "et-lab-host"


@dataclass(frozen=True, slots=True)
class Places:
    """Folders of one lab."""

    state: Path
    """All that lives only as long as the lab does."""
    binaries: Path
    """Kubernetes, compiled: outlives the lab and the repository's clone."""

    @classmethod
    def default(cls, state: Path) -> Places:
        """Binaries in the user's cache."""
        return cls(state, cache_folder() / "kubernetes" / f"debian-{VERSION}")

    @property
    def certificates(self) -> Path:
        """Keys and certificates of the control plane."""
        return self.state / "pki"

    @property
    def nodes(self) -> Path:
        """A folder for each node."""
        return self.state / "nodes"

    @property
    def shelf(self) -> Path:
        """Images for the nodes."""
        return self.state / "images"

    def kubeconfig(self, user: str) -> Path:
        """How that user reaches the API server."""
        return self.state / f"{user}.conf"


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/elastic-training`` (``~/.cache`` unless set)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "elastic-training"
