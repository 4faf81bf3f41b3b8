"""The lab as a whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cluster_kit.archive import Archive
from cluster_kit.backend import DEFAULT_NODES, NodeWish
from cluster_kit.debian import network, pause
from cluster_kit.debian.binaries import Binaries
from cluster_kit.debian.certificates import Certificates
from cluster_kit.debian.control_plane import ControlPlane
from cluster_kit.debian.daemons import Daemons
from cluster_kit.debian.node import Node
from cluster_kit.debian.places import HOST_ADDRESS, VERSION, Places
from cluster_kit.debian.shelf import Shelf
from cluster_kit.errors import ClusterError
from cluster_kit.shell import Progress, succeeds, wait_until

MOST_NODES = 32
_READY_SECONDS = 300.0


def possible() -> str | None:
    """Why the lab cannot be on this machine; None when it can."""
    if os.geteuid() != 0:
        return "not root"
    if not shutil.which("apt-get") or not Path("/etc/debian_version").exists():
        return "not Debian"
    return None


class DebianLab:
    """A cluster of Debian's Kubernetes on this machine.

    Args:
        places: its folders. There is one lab a machine, wherever its folder is: its addresses and ports are fixed.
        progress: where it says how far it is.
    """

    name = "debian"
    starts = True

    def __init__(self, places: Places, progress: Progress) -> None:
        self._places = places
        self._progress = progress
        self._daemons = Daemons(places.state)
        self._control = ControlPlane(places, self._daemons)
        self.kubeconfig = places.kubeconfig("admin")
        self._complete = places.state / "complete"

    def up(self, nodes: Sequence[NodeWish]) -> None:
        """Start what does not run. What was taken down comes back; what another session's end left dead is rebuilt."""
        self._places.state.mkdir(exist_ok=True)
        if self._complete.exists() and not self._daemons.runs("etcd"):
            self._progress.say("what is left of a lab that ended without `down` is removed")
            self.down()
            self._places.state.mkdir()
        if not self._complete.exists():
            self._make()
        if not self._control.answers() or len(self._running_parts()) < len(self._control.parts):
            self._progress.say("control plane")
            self._control.start()
        there = {node.name for node in self._nodes()}
        default = [] if there else [NodeWish.parse(name) for name in DEFAULT_NODES]
        for wish in nodes or default:
            if wish.name not in there:
                self._make_node(wish)
        self._start([node for node in self._nodes() if not node.runs])

    def host_address(self) -> str | None:
        """This machine's side of the pods' network."""
        return HOST_ADDRESS

    def status(self) -> Sequence[str]:
        """Control plane, and each node."""
        api = "ready" if self._control.answers() else "down"
        nodes = [f"{node.name}: {'up' if node.runs else 'down'}" for node in self._nodes()]
        return [f"Kubernetes {VERSION} of Debian's packages in {self._places.state}", f"API server: {api}", *nodes]

    def load(self, archive: Path) -> None:
        """Import into every node that is up; the others get it when they are back."""
        shelf = Shelf(self._places.shelf)
        image = shelf.put(Archive.read(archive))
        nodes = [node for node in self._nodes() if node.runs]
        with ThreadPoolExecutor(2) as pool:
            news = pool.map(lambda node: node.load(image, shelf), nodes)
            loaded = [node.name for node, new in zip(nodes, news, strict=True) if new]
        where = f"loaded into {', '.join(loaded)}" if loaded else "was there already"
        self._progress.say(f"{', '.join(image.names)} {where}")

    def node_down(self, node: str) -> None:
        """Cut it off, then kill it."""
        self._node(node).kill()

    def node_up(self, node: str) -> None:
        """Boot it again, with the disk that it had."""
        self._start([self._node(node)])

    def api_down(self) -> None:
        """SIGKILL."""
        self._control.stop_api_server()

    def api_up(self) -> None:
        """Start it again."""
        self._control.start_api_server()

    def down(self) -> None:
        """Nodes first, each as if its machine had gone; then the rest, the network and the folder."""
        nodes = self._nodes()
        for node in nodes:
            node.kill()
            node.remove()
        for name in self._daemons.names():
            self._daemons.stop(name, grace=2.0)
        self._control.clean_up()
        network.remove(range(MOST_NODES))
        _unmount_below(self._places.state)
        shutil.rmtree(self._places.state)

    def _make(self) -> None:
        Binaries(self._places, self._progress).provide()
        self._progress.say("certificates, network")
        network.make_host()
        Certificates(self._places).make_authority()
        archive = self._places.state / "pause.tar"
        pause.make_pause_image(archive, os.uname().machine)
        Shelf(self._places.shelf).put(Archive.read(archive))
        self._complete.touch()

    def _make_node(self, wish: NodeWish) -> None:
        index = len(self._nodes())
        if index >= MOST_NODES:
            raise ClusterError(f"the lab has addresses for {MOST_NODES} nodes")
        Node.make(wish, index, self._places, self._daemons)

    def _start(self, nodes: Sequence[Node]) -> None:
        if not nodes:
            return
        self._progress.say(f"nodes: {', '.join(node.name for node in nodes)}")
        before = {node.name: self._heartbeat(node) for node in nodes}
        for node in nodes:
            node.start()

        def ready() -> bool:
            return all(self._is_ready(node, before[node.name]) for node in nodes)

        wait_until(ready, f"{', '.join(node.name for node in nodes)} to be ready", _READY_SECONDS, every=0.5)
        self._progress.say("ready")

    def _is_ready(self, node: Node, before: str) -> bool:
        heartbeat = self._heartbeat(node)
        return heartbeat.startswith("True ") and heartbeat != before

    def _heartbeat(self, node: Node) -> str:
        """Its condition Ready as Kubernetes has it, with the time of the kubelet's last word about it."""
        path = '{range .status.conditions[?(@.type=="Ready")]}{.status} {.lastHeartbeatTime}{end}'
        words = ("get", "node", node.name, "--ignore-not-found", f"--output=jsonpath={path}")
        return self._control.kubectl(*words).strip()

    def _running_parts(self) -> list[str]:
        return [name for name in self._control.parts if self._daemons.runs(name)]

    def _nodes(self) -> list[Node]:
        return Node.all(self._places, self._daemons)

    def _node(self, name: str) -> Node:
        for node in self._nodes():
            if node.name == name:
                return node
        raise ClusterError(f"there is no node {name}; there are: {', '.join(node.name for node in self._nodes())}")


def _unmount_below(folder: Path) -> None:
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in sorted((each for each in mounts if each.startswith(f"{folder}/")), reverse=True):
        succeeds("umount", "--lazy", mount)
