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
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_runtime.errors import InvalidDocument

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

LAUNCHER = "launcher"
"""Name in the launcher's certificate, which agents check whatever address they dial."""
AUTHORITY_KEY = "authority.key"
AGENT = "agent"
"""Name in the certificate of the agents that the run's place starts. Others have one each, of their own name."""
_ROOT = "elastic run"
VALIDITY = timedelta(days=30)
"""By default. They are not renewed, so that no agent connects after that; those that are connected stay."""


class Authority:
    """The run's certificate authority. Its key is in the memory of this process, unless it is written for a launcher.

    Args:
        key: its own.
        until: end of its own certificate, and of most others.
        root: its own certificate; None: a new one.
    """

    def __init__(self, key: ec.EllipticCurvePrivateKey, until: datetime, root: bytes | None = None) -> None:
        self._key, self._until = key, until
        self.root = root or self._signed(_ROOT, key.public_key(), until)
        """Its own certificate."""

    @classmethod
    def new(cls, validity: timedelta) -> Authority:
        """Return a new one, whose certificate is valid from now on."""
        return cls(new_key()[0], datetime.now(UTC) + validity)

    @classmethod
    def read(cls, folder: Path) -> Authority:
        """Return the one of a folder of :func:`create`. Raise InvalidDocument where it does not have its key."""
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        try:
            key = serialization.load_pem_private_key((folder / AUTHORITY_KEY).read_bytes(), None)
            root = (folder / "ca.crt").read_bytes()
            own = x509.load_pem_x509_certificate(root).public_key()
        except (OSError, ValueError, TypeError) as error:
            raise InvalidDocument(f"the key of the run's authority cannot be read: {error}") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != own:
            raise InvalidDocument("the key of the run's authority is not that of its certificate")
        return cls(key, expiry(folder), root)

    def write_key(self, folder: Path) -> None:
        """Write its key beside the certificates, for a launcher that lets machines join."""
        write(folder / AUTHORITY_KEY, _pem(self._key))

    def certificate(self, name: str, key: ec.EllipticCurvePublicKey, names: Iterable[str] = ()) -> bytes:
        """Return the certificate of the launcher, or of the agents.

        Args:
            name: :data:`LAUNCHER` or :data:`AGENT`.
            key: its own.
            names: further ones.
        """
        return self._signed(name, key, self._until, (name, *names))

    def answer(self, request: str, name: str, validity: timedelta) -> str:
        """Return the certificate of an agent of that name, for the key of a request, as PEM.

        Args:
            request: PEM of a PKCS #10 request without names, extensions and attributes.
            name: that it may call itself.
            validity: from now on.

        Raises:
            InvalidDocument: it is not such a request, or its key is not one of NIST's P-256.
        """
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec

        try:
            asked = x509.load_pem_x509_csr(request.encode())
            key, is_own = asked.public_key(), asked.is_signature_valid
            bare = not asked.subject and not len(asked.extensions) and not len(asked.attributes)
        except Exception as error:  # noqa: BLE001  # whatever a parser of a stranger's bytes raises
            raise InvalidDocument(f"the request for a certificate cannot be read: {type(error).__name__}") from None
        if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != ec.SECP256R1.name or not is_own:
            raise InvalidDocument("the request for a certificate is not signed with its own key of P-256")
        if not bare:
            raise InvalidDocument("the request for a certificate has names or extensions, and may have none")
        until = min(self._until, datetime.now(UTC) + validity)
        return self._signed(name, key, until, (name,)).decode()

    def _signed(self, name: str, key: ec.EllipticCurvePublicKey, until: datetime, names: Iterable[str] = ()) -> bytes:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

        def subject(name: str) -> x509.Name:
            return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

        builder = (
            x509.CertificateBuilder()
            .subject_name(subject(name))
            .issuer_name(subject(_ROOT))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(datetime.now(UTC) - timedelta(minutes=5))
            .not_valid_after(until)
            .add_extension(x509.BasicConstraints(ca=name == _ROOT, path_length=None), critical=True)
        )
        if alternatives := [_general_name(each) for each in names]:
            usage = ExtendedKeyUsageOID.SERVER_AUTH if name == LAUNCHER else ExtendedKeyUsageOID.CLIENT_AUTH
            builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False).add_extension(
                x509.SubjectAlternativeName(alternatives), critical=False
            )
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def create(folder: Path, names: Iterable[str] = (), validity: timedelta = VALIDITY) -> Authority:
    """Write ``ca.crt`` and ``{launcher,agent}.{crt,key}`` into a new folder; the authority's own key is not written.

    Args:
        folder: made here, for the owner alone.
        names: further DNS names or addresses of the launcher.
        validity: from now on.
    """
    folder.mkdir(mode=0o700)
    authority = Authority.new(validity)
    write(folder / "ca.crt", authority.root)
    for name in (LAUNCHER, AGENT):
        key, pem = new_key()
        more = names if name == LAUNCHER else ()
        write(folder / f"{name}.crt", authority.certificate(name, key.public_key(), more))
        write(folder / f"{name}.key", pem)
    return authority


def new_key() -> tuple[ec.EllipticCurvePrivateKey, bytes]:
    """Return a new key, also as PEM without encryption."""
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    return key, _pem(key)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization

    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(pem, pkcs8, serialization.NoEncryption())


def request_for(key: ec.EllipticCurvePrivateKey) -> str:
    """Return the request for a certificate of that key, as :meth:`Authority.answer` takes it."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    asked = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    return asked.public_bytes(serialization.Encoding.PEM).decode()


def write(path: Path, data: bytes) -> None:
    """Write a file for its owner alone."""
    path.touch(mode=0o600)
    path.write_bytes(data)


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


JOIN = "elastic-join"
"""Protocol that the ClientHello of a machine offers that has no certificate yet, but a token for one (ALPN)."""


def join_server_context(folder: Path) -> ssl.SSLContext:
    """For the launcher, toward peers whose ClientHello has :data:`JOIN`: of these, no certificate is demanded."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(folder / f"{LAUNCHER}.crt", folder / f"{LAUNCHER}.key")
    context.set_alpn_protocols([JOIN])
    return context


def join_client_context() -> ssl.SSLContext:
    """For a machine that joins. It verifies nothing: compare the launcher's certificate with the token first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols([JOIN])
    return context


def certified_name(certificate: Mapping[str, Any] | None) -> str:
    """Return the only name in a verified certificate of an agent, as :mod:`ssl` tells it; empty: it has none."""
    names = [value for kind, value in (certificate or {}).get("subjectAltName", ()) if kind == "DNS"]
    return str(names[0]) if len(names) == 1 else ""


def certified_address(certificate: bytes) -> str:
    """Return the only IP address in a launcher's certificate, given as DER. Raise InvalidDocument."""
    from cryptography import x509

    try:
        names = x509.load_der_x509_certificate(certificate).extensions
        found = names.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.IPAddress)
    except (ValueError, x509.ExtensionNotFound):
        found = []
    if len(found) != 1:
        raise InvalidDocument("the launcher's certificate does not have one address")
    return str(found[0])


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
