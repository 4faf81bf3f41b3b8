"""The cluster of KUBECONFIG: somebody else's, so never started, stopped or broken from here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from cluster_kit.backend import NodeWish
from cluster_kit.errors import CannotDo
from cluster_kit.shell import run, succeeds


class GivenCluster:
    """The cluster that KUBECONFIG names.

    Args:
        kubeconfig: as KUBECONFIG says; its current context is used.
    """

    name = "kubeconfig"
    starts = False

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig

    @classmethod
    def answers(cls, kubeconfig: Path) -> bool:
        """Whether there is a cluster behind it."""
        return succeeds("kubectl", f"--kubeconfig={kubeconfig}", "--request-timeout=10s", "get", "--raw", "/readyz")

    def up(self, nodes: Sequence[NodeWish]) -> None:
        """It is up; which nodes it has is not our business."""

    def host_address(self) -> str | None:
        """Not known."""
        return None

    def status(self) -> Sequence[str]:
        """Its nodes."""
        listed = json.loads(run("kubectl", f"--kubeconfig={self.kubeconfig}", "get", "nodes", "--output=json"))
        names = ", ".join(node["metadata"]["name"] for node in listed["items"])
        return [f"the cluster of KUBECONFIG ({self.kubeconfig})", f"nodes: {names}"]

    def load(self, archive: Path) -> None:
        """Cannot be done."""
        raise CannotDo(f"{archive} cannot be loaded into the cluster of KUBECONFIG: push it to a registry of its own")

    def node_down(self, node: str) -> None:
        """Is not done."""
        raise CannotDo(f"{node} belongs to the cluster of KUBECONFIG, which is not taken apart from here")

    def node_up(self, node: str) -> None:
        """Is not done."""
        self.node_down(node)

    def api_down(self) -> None:
        """Is not done."""
        raise CannotDo("the API server of KUBECONFIG is not stopped from here")

    def api_up(self) -> None:
        """Is not done."""
        self.api_down()

    def down(self) -> None:
        """Nothing was started."""
