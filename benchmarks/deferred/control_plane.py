"""A Kubernetes API server of the benchmark's own: etcd and kube-apiserver, real, TLS everywhere, and nothing else.

No scheduler, no controllers, no nodes: what those would do to a run's objects, the benchmark does by hand, so that
nothing of theirs is in the figures. Ports are free ones of the loopback interface.
"""

from __future__ import annotations

import json
import secrets
import socket
import ssl
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from cluster_kit.debian import lab
from cluster_kit.debian.binaries import Binaries
from cluster_kit.debian.certificates import Certificates
from cluster_kit.debian.places import Places
from cluster_kit.errors import NoWay
from cluster_kit.shell import Progress
from demo_kit import processes
from demo_kit.processes import Child

_READY_SECONDS = 60.0
_GRACE = 10.0


@dataclass(frozen=True, slots=True)
class ApiServer:
    """A running one. Both users are cluster administrators: rights are not what is measured."""

    url: str
    folder: Path
    """Holds ``ca.crt``; and ``apiserver.crt``, ``apiserver.key``, valid for 127.0.0.1, for the stand-in kubelet."""
    token: str
    """Of the benchmark's own user."""
    kubeconfig: Path
    """Of the triggerer: a token and the authority's certificate, as a pod's service account has them."""
    pid: int


@contextmanager
def api_server(folder: Path) -> Iterator[ApiServer]:
    """Start both, yield when it answers, end both.

    Args:
        folder: new; for certificates, data and logs.

    Raises:
        NoWay: this machine offers no binaries of Kubernetes.
        RuntimeError: it does not start; the message has the end of its log.
    """
    places = _binaries(folder)
    Certificates(places).make_authority()
    tokens = {name: secrets.token_hex(32) for name in ("benchmark", "triggerer")}
    rows = (f'{token},{name},{name},"system:masters"\n' for name, token in tokens.items())
    (places.certificates / "tokens.csv").write_text("".join(rows))
    etcd_port, peer_port, api_port = _free_ports(3)
    url = f"https://127.0.0.1:{api_port}"
    children: list[Child] = []
    try:
        children.append(_start(folder, "etcd", _etcd(folder, etcd_port, peer_port)))
        children.append(_start(folder, "kube-apiserver", _api_server(places, etcd_port, api_port)))
        _await_ready(url, tokens["benchmark"], places.certificates / "ca.crt", children)
        kubeconfig = folder / "triggerer.conf"
        kubeconfig.touch(mode=0o600)
        kubeconfig.write_text(json.dumps(_kubeconfig(url, places.certificates / "ca.crt", tokens["triggerer"])))
        yield ApiServer(url, places.certificates, tokens["benchmark"], kubeconfig, children[-1].popen.pid)
    finally:
        # The API server first: it would only complain about an etcd that is gone.
        for child in reversed(children):
            processes.stop([child], _GRACE)


def _binaries(folder: Path) -> Places:
    if why_not := lab.possible():
        raise NoWay(f"no kube-apiserver of its own can be had on this machine: {why_not}")
    folder.mkdir(parents=True, exist_ok=True)
    places = Places.default(folder)
    Binaries(places, Progress("kubernetes")).provide()
    return places


def _etcd(folder: Path, port: int, peer_port: int) -> list[str]:
    client, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer_port}"
    return [
        "etcd",
        f"--data-dir={folder / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",  # the disk of this machine is not what is measured
    ]


def _api_server(places: Places, etcd_port: int, port: int) -> list[str]:
    pki = places.certificates
    return [
        str(places.binaries / "kube-apiserver"),
        f"--etcd-servers=http://127.0.0.1:{etcd_port}",
        f"--secure-port={port}",
        "--bind-address=127.0.0.1",
        f"--tls-cert-file={pki / 'apiserver.crt'}",
        f"--tls-private-key-file={pki / 'apiserver.key'}",
        f"--client-ca-file={pki / 'ca.crt'}",
        f"--token-auth-file={pki / 'tokens.csv'}",
        f"--service-account-key-file={pki / 'sa.pub'}",
        f"--service-account-signing-key-file={pki / 'sa.key'}",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--authorization-mode=RBAC",
        "--anonymous-auth=false",
        # Without controllers there are no service accounts that pods could be given.
        "--disable-admission-plugins=ServiceAccount",
        "--endpoint-reconciler-type=none",
        "--kubelet-preferred-address-types=InternalIP",
        f"--kubelet-certificate-authority={pki / 'ca.crt'}",
        f"--kubelet-client-certificate={pki / 'admin.crt'}",
        f"--kubelet-client-key={pki / 'admin.key'}",
    ]


def _start(folder: Path, name: str, command: Sequence[str]) -> Child:
    # An environment without the machine's proxies, which it would ask for 127.0.0.1.
    return processes.start(name, command, {"PATH": "/usr/bin:/bin", "HOME": str(folder)}, folder / f"{name}.log")


def _await_ready(url: str, token: str, authority: Path, children: Sequence[Child]) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    headers = {"Authorization": f"Bearer {token}"}
    while not _answers(f"{url}/readyz", headers, authority):
        for child in children:
            if child.exit_code is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{child.name} is not ready; the end of its log:\n{child.log_tail()}")
        time.sleep(0.2)


def _answers(url: str, headers: dict[str, str], authority: Path) -> bool:
    try:
        context = ssl.create_default_context(cafile=str(authority))
        return httpx.get(url, headers=headers, verify=context, trust_env=False).is_success
    except httpx.TransportError:
        return False


def _kubeconfig(url: str, authority: Path, token: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "benchmark", "cluster": {"server": url, "certificate-authority": str(authority)}}],
        "users": [{"name": "triggerer", "user": {"token": token}}],
        "contexts": [{"name": "benchmark", "context": {"cluster": "benchmark", "user": "triggerer"}}],
        "current-context": "benchmark",
    }


def _free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, all different."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()
