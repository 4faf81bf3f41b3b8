"""What every way to a cluster can do."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cluster_kit.errors import ClusterError

DEFAULT_NODES = ("node-0", "node-1", "node-2")


@dataclass(frozen=True, slots=True)
class NodeWish:
    """A node that somebody wants."""

    name: str
    """A DNS label."""
    labels: Mapping[str, str]
    """Labels beside those that a kubelet sets by itself."""

    @classmethod
    def parse(cls, text: str) -> NodeWish:
        """Read ``NAME`` or ``NAME:label=value,label=value``.

        Raises:
            ClusterError: it is neither.
        """
        name, _, rest = text.partition(":")
        labels = dict(part.partition("=")[::2] for part in rest.split(",") if part)
        if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?", name) or not all(labels):
            raise ClusterError(f"{text!r} is no node: write NAME or NAME:label=value,label=value")
        return cls(name, labels)


class Backend(Protocol):
    """One way to a cluster. Every method but :meth:`up` wants it to be up, and may raise :class:`ClusterError`."""

    name: str
    """For the reader: ``kubeconfig``, ``kind`` or ``debian``."""
    kubeconfig: Path
    """Exists while the cluster is up."""
    starts: bool
    """Whether :meth:`up` starts something, and :meth:`down` ends it."""

    def up(self, nodes: Sequence[NodeWish]) -> None:
        """Start what does not run, wait until all nodes are ready. Without ``nodes``: those there are, or three."""

    def host_address(self) -> str | None:
        """Where pods reach a program that listens on this machine; None when that is not known."""

    def status(self) -> Sequence[str]:
        """A few lines for the reader."""

    def load(self, archive: Path) -> None:
        """Give every node the images in a docker-archive, unless it has them."""

    def node_down(self, node: str) -> None:
        """The machine is gone without a word: network, kubelet, containers."""

    def node_up(self, node: str) -> None:
        """The machine is back. Returns when Kubernetes calls it ready."""

    def api_down(self) -> None:
        """Stop the API server; pods go on."""

    def api_up(self) -> None:
        """Start the API server again. Returns when it is ready."""

    def down(self) -> None:
        """End and remove all that :meth:`up` started."""
