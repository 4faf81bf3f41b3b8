"""The lab's certificate authority, and who may log in by a certificate of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster_kit.debian.places import API_PORT, HOST_ADDRESS, SERVICE_ADDRESS, Places
from cluster_kit.shell import run

_API_NAMES = ("DNS:kubernetes", "DNS:kubernetes.default", "DNS:kubernetes.default.svc", "DNS:localhost")


@dataclass(frozen=True, slots=True)
class Certificates:
    """Made by the ``openssl`` command: this has to work before any Python package is installed."""

    places: Places

    def make_authority(self) -> None:
        """The authority, the key that service accounts' tokens are signed with, the API server's and the admin's."""
        folder = self.places.certificates
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _openssl(folder, "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -days 365 -subj /CN=elastic-lab")
        _openssl(folder, "genrsa -out sa.key 2048")
        _openssl(folder, "rsa -in sa.key -pubout -out sa.pub")
        addresses = [f"IP:{address}" for address in ("127.0.0.1", SERVICE_ADDRESS, HOST_ADDRESS)]
        self._issue("apiserver", "/CN=kube-apiserver", [*_API_NAMES, *addresses])
        self.make_user("admin", "/O=system:masters/CN=admin")

    def make_user(self, name: str, subject: str) -> Path:
        """A certificate to log in with, and the kubeconfig that uses it.

        Args:
            name: of the files.
            subject: ``/O=GROUP/CN=USER`` as Kubernetes shall know them.
        """
        self._issue(name, subject, [])
        path = self.places.kubeconfig(name)
        path.write_text(json.dumps(self._kubeconfig(name), indent=1))
        path.chmod(0o600)
        return path

    def _issue(self, name: str, subject: str, alternative_names: Sequence[str]) -> None:
        folder = self.places.certificates
        _openssl(folder, f"req -newkey rsa:2048 -nodes -keyout {name}.key -out {name}.csr -subj {subject}")
        extensions = folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={','.join(alternative_names)}\n" if alternative_names else "")
        _openssl(
            folder,
            f"x509 -req -in {name}.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out {name}.crt -days 365"
            f" -extfile {extensions.name}",
        )

    def _kubeconfig(self, user: str) -> dict[str, object]:
        folder = self.places.certificates
        server = {"server": f"https://127.0.0.1:{API_PORT}", "certificate-authority": str(folder / "ca.crt")}
        login = {"client-certificate": str(folder / f"{user}.crt"), "client-key": str(folder / f"{user}.key")}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "elastic-lab", "cluster": server}],
            "users": [{"name": user, "user": login}],
            "contexts": [{"name": "elastic-lab", "context": {"cluster": "elastic-lab", "user": user}}],
            "current-context": "elastic-lab",
        }


def _openssl(folder: Path, arguments: str) -> None:
    run("openssl", *arguments.split(), folder=folder)
