"""One node: a kubelet with a containerd and a network of its own."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cluster_kit.backend import NodeWish
from cluster_kit.debian import cgroups, network
from cluster_kit.debian.certificates import Certificates
from cluster_kit.debian.daemons import Daemons
from cluster_kit.debian.node_settings import NodeSettings
from cluster_kit.debian.own_folders import with_folders_of, with_own_folders
from cluster_kit.debian.places import Places
from cluster_kit.debian.shelf import Shelf, Shelved
from cluster_kit.errors import ClusterError
from cluster_kit.shell import run, succeeds, wait_until

_CONTAINERD_SECONDS = 30.0
_END_SECONDS = 20.0
_LOAD_SECONDS = 600.0
_LOAD_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the lab, up or down."""

    settings: NodeSettings
    daemons: Daemons

    @classmethod
    def all(cls, places: Places, daemons: Daemons) -> list[Node]:
        """Every node that was ever made in this lab, by index."""
        records = [json.loads(path.read_text()) for path in places.nodes.glob("*/node.json")]
        nodes = [cls(NodeSettings(each["name"], each["index"], each["labels"], places), daemons) for each in records]
        return sorted(nodes, key=lambda node: node.settings.index)

    @classmethod
    def make(cls, wish: NodeWish, index: int, places: Places, daemons: Daemons) -> Node:
        """Lay down what a new node is made of."""
        settings = NodeSettings(wish.name, index, wish.labels, places)
        node = cls(settings, daemons)
        node._write("containerd.toml", settings.for_containerd())
        node._write("cni/10-lab.conflist", json.dumps(settings.for_network()))
        node._write("kubelet.json", json.dumps(settings.for_kubelet()))
        Certificates(places).make_user(settings.kubelet, f"/O=system:nodes/CN=system:node:{wish.name}")
        node._write("node.json", json.dumps({"name": wish.name, "index": index, "labels": dict(wish.labels)}))
        return node

    @property
    def name(self) -> str:
        """As Kubernetes knows it."""
        return self.settings.name

    @property
    def runs(self) -> bool:
        """Whether its kubelet and containerd are alive."""
        return self.daemons.runs(self.settings.containerd) and self.daemons.runs(self.settings.kubelet)

    def start(self) -> None:
        """Boot it. Kubernetes will call it ready some seconds later."""
        mine = self.settings
        network.make_node(mine.index)
        cgroups.make(mine.cgroup)
        if not self.daemons.runs(mine.containerd):
            self.daemons.stop(mine.kubelet, grace=0.0)  # it has the folders of the containerd that is gone
            self.daemons.start(mine.containerd, with_own_folders(mine.folder / "own", mine.containerd_command()))
        wait_until(self._containerd_answers, f"containerd of {self.name}", _CONTAINERD_SECONDS)
        shelf = Shelf(mine.places.shelf)
        for image in shelf.all():
            self.load(image, shelf)
        if containerd := self.daemons.pid(mine.containerd):
            self.daemons.start(mine.kubelet, with_folders_of(containerd, mine.kubelet_command()))

    def kill(self) -> None:
        """What a reclaimed machine looks like: no more packets at once, then nothing runs any more."""
        network.silence_node(self.settings.index)
        self.daemons.stop(self.settings.kubelet, grace=0.0)
        self.daemons.stop(self.settings.containerd, grace=0.0)

        def all_gone() -> bool:
            return not any([self._kill_shims(), cgroups.kill(self.settings.cgroup)])

        wait_until(all_gone, f"the end of {self.name}", _END_SECONDS)

    def remove(self) -> None:
        """What is left of a killed one outside its folder."""
        cgroups.remove(self.settings.cgroup)

    def load(self, image: Shelved, shelf: Shelf) -> bool:
        """Take images from the shelf; False if they are here already."""
        stamp = self.settings.folder / "images" / image.digest
        if stamp.exists():
            return False
        for attempt in range(_LOAD_ATTEMPTS):
            try:
                self._import(image, shelf)
                break
            except ClusterError:
                # containerd may have thrown away a layer that no image had yet.
                if attempt + 1 == _LOAD_ATTEMPTS:
                    raise
        stamp.parent.mkdir(exist_ok=True)
        stamp.touch()
        return True

    def _import(self, image: Shelved, shelf: Shelf) -> None:
        there = set(run(*self._ctr(), "content", "ls", "--quiet").split())
        blobs = self.settings.folder / "containerd" / "io.containerd.content.v1.content" / "blobs" / "sha256"
        blobs.mkdir(parents=True, exist_ok=True)
        for digest in image.layers:
            if f"sha256:{digest}" in there:
                continue
            layer = shelf.layer(digest)
            with suppress(FileExistsError):
                (blobs / digest).hardlink_to(layer)
            # It finds the file in its place and reads nothing.
            expected = (f"--expected-digest=sha256:{digest}", f"--expected-size={layer.stat().st_size}")
            run(*self._ctr(), "content", "ingest", *expected, digest, stdin=layer, seconds=_LOAD_SECONDS)
        run(*self._ctr(), "images", "import", shelf.manifests(image), seconds=_LOAD_SECONDS)

    def _containerd_answers(self) -> bool:
        self.daemons.check(self.settings.containerd)
        return succeeds(*self._ctr(), "version")

    def _ctr(self) -> tuple[str | Path, ...]:
        return ("ctr", "--address", self.settings.socket, "--namespace", "k8s.io")

    def _write(self, name: str, text: str) -> None:
        path = self.settings.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def _kill_shims(self) -> bool:
        """The parents of its containers, known by the socket that they were given; True if there was one."""
        address, found = os.fsencode(self.settings.socket), False
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (process / "cmdline").read_bytes().split(b"\0")
                if address in words and b"-address" in words:
                    os.kill(int(process.name), signal.SIGKILL)
                    found = True
        return found
