"""What the parts of a node are told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster_kit.debian import pause
from cluster_kit.debian.places import FIRST_KUBELET_PORT, HOST_ADDRESS, Places, bridge, pod_subnet

_PLUGINS = "/usr/lib/cni"


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Of one node."""

    name: str
    index: int
    """From 0; ports and addresses follow from it."""
    labels: Mapping[str, str]
    places: Places

    @property
    def folder(self) -> Path:
        """Its disk, so to say."""
        return self.places.nodes / self.name

    @property
    def socket(self) -> Path:
        """Of its containerd."""
        return self.folder / "run" / "containerd.sock"

    @property
    def cgroup(self) -> str:
        """All its containers are below it."""
        return f"elastic-lab-{self.name}"

    @property
    def kubelet(self) -> str:
        """Name of the daemon and of its login."""
        return f"kubelet-{self.name}"

    @property
    def containerd(self) -> str:
        """Name of the daemon."""
        return f"containerd-{self.name}"

    def containerd_command(self) -> list[str | Path]:
        """With the settings that :meth:`for_containerd` makes."""
        return ["containerd", "--config", self.folder / "containerd.toml"]

    def kubelet_command(self) -> list[str | Path]:
        """With the settings that :meth:`for_kubelet` makes."""
        labels = ",".join(f"{key}={value}" for key, value in self.labels.items())
        return [
            self.places.binaries / "kubelet",
            f"--config={self.folder / 'kubelet.json'}",
            f"--kubeconfig={self.places.kubeconfig(self.kubelet)}",
            "--container-runtime=remote",
            f"--container-runtime-endpoint=unix://{self.socket}",
            f"--hostname-override={self.name}",
            f"--node-ip={HOST_ADDRESS}",
            f"--root-dir={self.folder / 'kubelet'}",
            f"--cert-dir={self.folder / 'pki'}",
            *([f"--node-labels={labels}"] if labels else []),
        ]

    def for_kubelet(self) -> dict[str, object]:
        """``kubelet.json``: a KubeletConfiguration."""
        port = FIRST_KUBELET_PORT + 10 * self.index
        return {
            "kind": "KubeletConfiguration",
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.cgroup}",
            "failSwapOn": False,
            "port": port,
            "healthzPort": port + 1,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self.places.certificates / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            # A full disk of the developer's is no reason to evict pods or to throw images away.
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            "nodeStatusUpdateFrequency": "4s",
        }

    def for_containerd(self) -> str:
        """``containerd.toml``."""
        # restrict_oom_score_adj: without CAP_SYS_RESOURCE runc cannot lower oom_score_adj, and dies with "can't get
        # final child's PID".
        return f"""\
version = 2
disabled_plugins = ["io.containerd.internal.v1.opt"]
root = "{self.folder / "containerd"}"
state = "{self.folder / "run"}"
[grpc]
  address = "{self.socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause.NAME}"
  restrict_oom_score_adj = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{_PLUGINS}"
    conf_dir = "{self.folder / "cni"}"
"""

    def for_network(self) -> dict[str, object]:
        """``10-lab.conflist``: how the CNI plug-ins give pods their network."""
        addresses = {
            "type": "host-local",
            "dataDir": str(self.folder / "addresses"),
            "ranges": [[{"subnet": pod_subnet(self.index)}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        plugin = {
            "type": "bridge",
            "bridge": bridge(self.index),
            "isGateway": True,
            "hairpinMode": True,
            "ipam": addresses,
        }
        return {"cniVersion": "0.4.0", "name": "elastic-lab", "plugins": [plugin]}
