"""The certificate authority of one run: who holds a certificate of it belongs to the run, and nobody else does.

Made with `cryptography`_ when the run is created; agents and launcher need only :mod:`ssl`.

.. _cryptography: https://cryptography.io
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import shutil
import ssl
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography import x509

LAUNCHER = "launcher"
"""Name in the launcher's certificate, which agents check whatever address they dial."""
AGENT = "agent"
VALIDITY = timedelta(days=30)
"""By default. They are not renewed, so that no agent connects after that; those that are connected stay."""


def create(folder: Path, names: Iterable[str] = (), validity: timedelta = VALIDITY) -> None:
    """Write ``ca.crt`` and ``{launcher,agent}.{crt,key}`` into a new folder; the authority's own key is not kept.

    Args:
        folder: made here, for the owner alone.
        names: further DNS names or addresses of the launcher.
        validity: from now on.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    now = datetime.now(UTC)

    def subject(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    def builder(name: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject(name))
            .issuer_name(subject("elastic run"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=5))
            .not_valid_after(now + validity)
            .add_extension(x509.BasicConstraints(ca=name == "elastic run", path_length=None), critical=True)
        )

    def write(name: str, data: bytes) -> None:
        path = folder / name
        path.touch(mode=0o600)
        path.write_bytes(data)

    folder.mkdir(mode=0o700)
    authority = ec.generate_private_key(ec.SECP256R1())
    root = builder("elastic run", authority).sign(authority, hashes.SHA256())
    write("ca.crt", root.public_bytes(serialization.Encoding.PEM))
    for name, usage in ((LAUNCHER, ExtendedKeyUsageOID.SERVER_AUTH), (AGENT, ExtendedKeyUsageOID.CLIENT_AUTH)):
        key = ec.generate_private_key(ec.SECP256R1())
        alternatives = [_general_name(each) for each in (name, *(names if name == LAUNCHER else ()))]
        certificate = (
            builder(name, key)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
            .sign(authority, hashes.SHA256())
        )
        write(f"{name}.crt", certificate.public_bytes(serialization.Encoding.PEM))
        pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        write(f"{name}.key", key.private_bytes(pem, pkcs8, serialization.NoEncryption()))


def remove(folder: Path) -> None:
    """Remove what :func:`create` made, and the folder. Needs no descriptor, so it works where there is none left."""
    for name in ("ca.crt", *(f"{who}.{kind}" for who in (LAUNCHER, AGENT) for kind in ("crt", "key"))):
        with contextlib.suppress(OSError):
            (folder / name).unlink()
    with contextlib.suppress(OSError):
        folder.rmdir()
    shutil.rmtree(folder, ignore_errors=True)


def _general_name(name: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def launcher_context(folder: Path) -> ssl.SSLContext:
    """For the launcher's server: only agents with a certificate of this run come in."""
    return _context(folder, LAUNCHER, ssl.Purpose.CLIENT_AUTH)


def agent_context(folder: Path) -> ssl.SSLContext:
    """For an agent's connection; dial with ``server_hostname=LAUNCHER``. Its ClientHello holds :func:`watchword`."""
    context = _context(folder, AGENT, ssl.Purpose.SERVER_AUTH)
    context.set_alpn_protocols([watchword(folder)])
    return context


def expiry(folder: Path) -> datetime:
    """When the run's certificates expire, the authority's and all others."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_verify_locations(folder / "ca.crt")
    [authority] = context.get_ca_certs()
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(str(authority["notAfter"])), UTC)


def watchword(folder: Path) -> str:
    """Return the protocol that agents' ClientHello offers (ALPN, RFC 7301), so that it does not queue.

    It is a digest of the authority's certificate, which TLS 1.3 sends nobody. Who can listen to an agent's connection
    can repeat it: it gives a better place in the line, and no right.
    """
    return hashlib.sha256((folder / "ca.crt").read_bytes()).hexdigest()


def _context(folder: Path, name: str, purpose: ssl.Purpose) -> ssl.SSLContext:
    context = ssl.create_default_context(purpose, cafile=str(folder / "ca.crt"))
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(folder / f"{name}.crt", folder / f"{name}.key")
    return context
