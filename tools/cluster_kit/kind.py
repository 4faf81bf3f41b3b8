"""A cluster by kind (https://kind.sigs.k8s.io), for where a Docker engine answers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from cluster_kit.archive import Archive
from cluster_kit.backend import DEFAULT_NODES, NodeWish
from cluster_kit.errors import ClusterError
from cluster_kit.shell import Progress, run, succeeds, wait_until

NAME = "elastic-training"
_CONTROL = f"{NAME}-control-plane"
_API_MANIFEST = "kube-apiserver.yaml"
_MANIFESTS = "/etc/kubernetes/manifests"
_READY_SECONDS = 300.0


def possible() -> str | None:
    """Why kind does not work on this machine; None when it does."""
    if not shutil.which("kind"):
        return "kind is not installed"
    # A docker command alone proves nothing: it has to have an engine.
    if not succeeds("docker", "info"):
        return "no Docker engine answers"
    return None


class KindCluster:
    """A cluster of kind, which names its nodes itself: only the number of requested nodes counts.

    Args:
        state: a folder of its own that lives as long as the cluster.
        progress: where it says how far it is.
    """

    name = "kind"
    starts = True

    def __init__(self, state: Path, progress: Progress) -> None:
        self._progress = progress
        self._state = state
        self.kubeconfig = state / "kind.conf"

    def up(self, nodes: Sequence[NodeWish]) -> None:
        """Create it, or bring back what was taken down."""
        self._state.mkdir(exist_ok=True)
        if NAME in run("kind", "get", "clusters").split():
            for node in self._containers(running=False):
                self.node_up(node)
            self.api_up()
        else:
            wishes = nodes or [NodeWish.parse(name) for name in DEFAULT_NODES]
            workers = [{"role": "worker", "labels": dict(wish.labels)} for wish in wishes]
            settings = {
                "kind": "Cluster",
                "apiVersion": "kind.x-k8s.io/v1alpha4",
                "nodes": [{"role": "control-plane"}, *workers],
            }
            file = self._state / "kind.json"
            file.write_text(json.dumps(settings))
            command = ["kind", "create", "cluster", f"--name={NAME}", f"--config={file}", "--wait=120s"]
            self._progress.step(
                "kind create cluster", [*command, f"--kubeconfig={self.kubeconfig}"], self._state / "kind.log"
            )
        run("kind", "export", "kubeconfig", f"--name={NAME}", f"--kubeconfig={self.kubeconfig}")

    def host_address(self) -> str | None:
        """The gateway of kind's Docker network."""
        networks = json.loads(run("docker", "network", "inspect", "kind"))
        gateways = [each["Gateway"] for each in networks[0]["IPAM"]["Config"] if "Gateway" in each]
        return next((address for address in gateways if ":" not in address), None)

    def status(self) -> Sequence[str]:
        """Its nodes."""
        up, down = self._containers(running=True), self._containers(running=False)
        return [f"kind {NAME}", *(f"{node}: up" for node in up), *(f"{node}: down" for node in down)]

    def load(self, archive: Path) -> None:
        """By ``kind load``, unless it was loaded before."""
        image = Archive.read(archive)
        stamp = self._state / f"image-{image.digest}"
        if stamp.exists():
            return
        self._progress.say(f"kind load {', '.join(image.names)}")
        run("kind", "load", "image-archive", f"--name={NAME}", archive, seconds=600.0)
        stamp.touch()

    def node_down(self, node: str) -> None:
        """Kill its container, and with it all that runs in it."""
        if node not in self._containers(running=True):
            raise ClusterError(f"no node {node} is up; there are: {', '.join(self._containers(running=True))}")
        run("docker", "kill", node)

    def node_up(self, node: str) -> None:
        """Start its container again."""
        run("docker", "start", node)
        seconds = f"--timeout={_READY_SECONDS:.0f}s"
        wait = ("wait", "--for=condition=Ready", f"node/{node}", seconds)
        run("kubectl", f"--kubeconfig={self.kubeconfig}", *wait, seconds=_READY_SECONDS + 10.0)

    def api_down(self) -> None:
        """Take its manifest away from the kubelet, then kill it."""
        run("docker", "exec", _CONTROL, "mv", "-f", f"{_MANIFESTS}/{_API_MANIFEST}", "/etc/kubernetes/")
        succeeds("docker", "exec", _CONTROL, "pkill", "-KILL", "kube-apiserver")

    def api_up(self) -> None:
        """Put the manifest back."""
        succeeds("docker", "exec", _CONTROL, "mv", "-n", f"/etc/kubernetes/{_API_MANIFEST}", f"{_MANIFESTS}/")
        ready = ("kubectl", f"--kubeconfig={self.kubeconfig}", "get", "--raw", "/readyz")
        wait_until(lambda: succeeds(*ready), "the API server", _READY_SECONDS, every=1.0)

    def down(self) -> None:
        """``kind delete cluster``."""
        run("kind", "delete", "cluster", f"--name={NAME}", f"--kubeconfig={self.kubeconfig}")
        shutil.rmtree(self._state)

    def _containers(self, *, running: bool) -> list[str]:
        state = ["--filter=status=running"] if running else ["--filter=status=exited"]
        listed = run(
            "docker", "ps", "--all", f"--filter=label=io.x-k8s.kind.cluster={NAME}", *state, "--format={{.Names}}"
        )
        return sorted(listed.split())
