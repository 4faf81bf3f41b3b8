"""etcd, API server, controller-manager, scheduler and kube-proxy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from cluster_kit.debian.daemons import Daemons
from cluster_kit.debian.places import (
    API_PORT,
    ETCD_PEER_PORT,
    ETCD_PORT,
    HOST_ADDRESS,
    POD_NETWORK,
    SERVICE_NETWORK,
    Places,
)
from cluster_kit.shell import run, succeeds, wait_until

API_SERVER = "kube-apiserver"
POLICIES = Path(__file__).resolve().parents[1] / "manifests" / "restricted-by-default.yaml"
_ETCD = f"http://127.0.0.1:{ETCD_PORT}"
_ETCD_PEER = f"http://127.0.0.1:{ETCD_PEER_PORT}"
_READY_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """Starts what does not run; each part may be started again at any time."""

    places: Places
    daemons: Daemons

    parts: ClassVar = ("etcd", API_SERVER, "kube-controller-manager", "kube-scheduler", "kube-proxy")
    """Names of its daemons."""

    def start(self) -> None:
        """Returns when the API server answers, the others may still be on their way."""
        self.daemons.start("etcd", self._etcd())
        self.start_api_server()
        # The API server makes its own namespaces a moment after it says that it is ready.
        wait_until(lambda: succeeds(*self._kubectl(), "get", "namespace", "kube-system"), "kube-system", _READY_SECONDS)
        run(*self._kubectl(), "apply", "--filename", POLICIES)
        self.daemons.start("kube-controller-manager", self._controller_manager())
        self.daemons.start("kube-scheduler", self._scheduler())
        self.daemons.start("kube-proxy", self._proxy())

    def start_api_server(self) -> None:
        """Returns when it is ready."""
        self.daemons.start(API_SERVER, self._api_server())

        def ready() -> bool:
            self.daemons.check("etcd")
            self.daemons.check(API_SERVER)
            return self.answers()

        wait_until(ready, "the API server", _READY_SECONDS)

    def stop_api_server(self) -> None:
        """At once: connections break, none is closed in good order."""
        self.daemons.stop(API_SERVER, grace=0.0)

    def answers(self) -> bool:
        """Whether the API server is ready."""
        return self.daemons.runs(API_SERVER) and succeeds(*self._kubectl(), "get", "--raw", "/readyz", seconds=5.0)

    def kubectl(self, *arguments: str) -> str:
        """Run ``kubectl`` as the administrator; returns its output."""
        return run(*self._kubectl(), *arguments)

    def clean_up(self) -> None:
        """Remove kube-proxy's rules from this machine's packet filter."""
        if (proxy := self.places.binaries / "kube-proxy").exists():
            succeeds(proxy, "--cleanup")

    def _kubectl(self) -> tuple[str, ...]:
        return ("kubectl", f"--kubeconfig={self.places.kubeconfig('admin')}", "--request-timeout=10s")

    def _etcd(self) -> list[str | Path]:
        return [
            "etcd",
            f"--data-dir={self.places.state / 'etcd'}",
            f"--listen-client-urls={_ETCD}",
            f"--advertise-client-urls={_ETCD}",
            f"--listen-peer-urls={_ETCD_PEER}",
            f"--initial-advertise-peer-urls={_ETCD_PEER}",
            f"--initial-cluster=default={_ETCD_PEER}",
            "--unsafe-no-fsync",  # nothing in here has to survive the machine
        ]

    def _api_server(self) -> list[str | Path]:
        pki = self.places.certificates
        return [
            self.places.binaries / API_SERVER,
            f"--etcd-servers={_ETCD}",
            f"--secure-port={API_PORT}",
            f"--advertise-address={HOST_ADDRESS}",
            f"--tls-cert-file={pki / 'apiserver.crt'}",
            f"--tls-private-key-file={pki / 'apiserver.key'}",
            f"--client-ca-file={pki / 'ca.crt'}",
            f"--service-account-key-file={pki / 'sa.pub'}",
            f"--service-account-signing-key-file={pki / 'sa.key'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-cluster-ip-range={SERVICE_NETWORK}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction,PodSecurityPolicy",
            "--allow-privileged",
            "--kubelet-preferred-address-types=InternalIP",
            f"--kubelet-client-certificate={pki / 'admin.crt'}",
            f"--kubelet-client-key={pki / 'admin.key'}",
            "--profiling=false",
        ]

    def _controller_manager(self) -> list[str | Path]:
        pki = self.places.certificates
        return [
            self.places.binaries / "kube-controller-manager",
            f"--kubeconfig={self.places.kubeconfig('admin')}",
            "--leader-elect=false",
            f"--service-account-private-key-file={pki / 'sa.key'}",
            f"--root-ca-file={pki / 'ca.crt'}",
            "--use-service-account-credentials",
            # A dead node is noticed after 16 s instead of 40. Evictions are left to the pods' own tolerations.
            "--node-monitor-grace-period=16s",
            # The usual 20 a second would be what a benchmark of a thousand runs measures.
            "--kube-api-qps=200",
            "--kube-api-burst=400",
        ]

    def _scheduler(self) -> list[str | Path]:
        return [
            self.places.binaries / "kube-scheduler",
            f"--kubeconfig={self.places.kubeconfig('admin')}",
            "--leader-elect=false",
        ]

    def _proxy(self) -> list[str | Path]:
        return [
            self.places.binaries / "kube-proxy",
            f"--kubeconfig={self.places.kubeconfig('admin')}",
            "--proxy-mode=iptables",
            f"--cluster-cidr={POD_NETWORK}",
            "--masquerade-all",  # the answer of a pod on the same bridge must come back through this machine
            "--conntrack-max-per-core=0",  # three settings of the whole machine, left alone
            "--conntrack-tcp-timeout-established=0",
            "--conntrack-tcp-timeout-close-wait=0",
            "--hostname-override=elastic-lab",
        ]
