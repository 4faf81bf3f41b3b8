"""The run's certificate authority; what it keeps out is in ``test_agents``."""

from __future__ import annotations

import ipaddress
import ssl
import stat
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from elastic_runtime.errors import InvalidDocument
from elastic_runtime.net import certificates


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("run") / "tls"
    certificates.create(made, ["10.0.0.7", "launcher.svc"])
    return made


def read(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_keeps_no_key_of_the_authority_and_shows_the_others_to_nobody(folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == {
        *("ca.crt", "agent.crt", "agent.key", "launcher.crt", "launcher.key"),
    }
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


@pytest.mark.parametrize(
    ("name", "usage"),
    [("launcher", ExtendedKeyUsageOID.SERVER_AUTH), ("agent", ExtendedKeyUsageOID.CLIENT_AUTH)],
)
def test_each_is_signed_for_one_use_and_signs_nothing(folder: Path, name: str, usage: object) -> None:
    certificate, authority = read(folder / f"{name}.crt"), read(folder / "ca.crt")
    certificate.verify_directly_issued_by(authority)
    assert list(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [usage]
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_the_launcher_is_known_by_its_name_and_its_addresses(folder: Path) -> None:
    names = read(folder / "launcher.crt").extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["launcher", "launcher.svc"]
    assert names.get_values_for_type(x509.IPAddress) == [ipaddress.ip_address("10.0.0.7")]


def test_both_sides_ask_for_a_certificate_and_speak_the_newest_tls(folder: Path) -> None:
    for context in (certificates.launcher_context(folder), certificates.agent_context(folder)):
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.minimum_version is ssl.TLSVersion.TLSv1_3
        assert len(context.get_ca_certs()) == 1, "the run's own authority, and no public one"
    assert certificates.agent_context(folder).check_hostname


def test_does_not_write_over_another_runs(folder: Path) -> None:
    with pytest.raises(FileExistsError):
        certificates.create(folder)


@pytest.mark.parametrize("name", ["ca", "launcher", "agent"])
def test_all_are_valid_for_a_month_unless_it_is_said(folder: Path, name: str, tmp_path: Path) -> None:
    certificate = read(folder / f"{name}.crt")
    assert certificate.not_valid_after_utc == certificates.expiry(folder)
    assert timedelta(days=30) <= certificate.not_valid_after_utc - certificate.not_valid_before_utc < timedelta(days=31)
    certificates.create(tmp_path / "tls", validity=timedelta(days=365))
    assert certificates.expiry(tmp_path / "tls") > certificates.expiry(folder) + timedelta(days=300)


class TestAuthority:
    """For a launcher that lets machines join, and is in another process than its creator."""

    def test_signs_where_its_key_was_written_as_where_it_was_made(self, tmp_path: Path) -> None:
        made = certificates.create(tls := tmp_path / "tls", validity=timedelta(days=2))
        made.write_key(tls)
        assert stat.S_IMODE((tls / "authority.key").stat().st_mode) == 0o600
        read_again = certificates.Authority.read(tls)
        request = certificates.request_for(certificates.new_key()[0])
        certificate = x509.load_pem_x509_certificate(read_again.answer(request, "joined-1", timedelta(days=9)).encode())
        certificate.verify_directly_issued_by(read(tls / "ca.crt"))
        assert certificate.not_valid_after_utc <= read(tls / "ca.crt").not_valid_after_utc
        assert read_again.root == made.root

    @pytest.mark.parametrize("key", [None, b"", b"-----BEGIN PRIVATE KEY-----"])
    def test_one_without_a_key_is_refused(self, tmp_path: Path, key: bytes | None) -> None:
        certificates.create(tls := tmp_path / "tls")
        if key is not None:
            (tls / "authority.key").write_bytes(key)
        with pytest.raises(InvalidDocument, match="the key of the run's authority"):
            certificates.Authority.read(tls)
