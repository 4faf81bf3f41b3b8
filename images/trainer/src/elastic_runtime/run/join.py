"""Workers that join a run by hand, from machines that its place does not start: where they connect, and their tokens.

A token holds what its bearer needs before it trusts anybody: a digest of the launcher's certificate, by which the
launcher is recognized, and a secret, which the launcher keeps as a digest alone.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import ipaddress
import re
import secrets
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Self

from elastic_runtime.errors import Conflict, InvalidDocument, InvalidSettings
from elastic_runtime.marks import SPARSE

JOIN_PORT = 7443
"""By default."""
TOKEN_LIFETIME = timedelta(hours=1)
"""By default."""
LONGEST_LIFETIME = timedelta(days=7)
MAX_TOKENS = 100
"""Tokens of a run that are neither used nor expired."""
TOO_MANY = f"{MAX_TOKENS} tokens of this run are neither used nor expired; use one, or try again later"
MOST_NETWORKS = 20
BY_NAME = ("horovod", "horovodrun")
"""Engines some of whose connections use the address that a machine's own name resolves to."""
HOW_TO_NAME = "Horovod connects to that address, too: write a line with the right one and that name into its /etc/hosts"
_PIN = re.compile("[0-9a-f]{64}")
_BYTES = 32
"""Of each part of a token."""
_PREFIX = "join-"
_JOINED = "joined-"
_NAME = re.compile(rf"{_JOINED}[0-9]+(\.r[0-9]+)?")
"""Of its first connection, or of a later one. A run of a DAG ``joined`` has pods whose names begin alike."""


@dataclass(frozen=True, slots=True)
class JoinSpec:
    """Where machines connect that join by hand."""

    address: str = ""
    """IP address of the launcher's machine, on which launcher and ranks listen. Empty: the one by which a batch system
    reaches the launcher."""
    port: int = JOIN_PORT
    networks: tuple[str, ...] = field(default=(), metadata=SPARSE)
    """Of runs in pods: networks from which machines may connect to these, as in 10.0.0.0/16."""

    def __post_init__(self) -> None:
        if self.address:
            self.check_address()
        if len(self.networks) > MOST_NETWORKS:
            raise InvalidSettings(
                "workers.join.networks", f"there are more than {MOST_NETWORKS}", "Write fewer, larger"
            )
        for each in self.networks:
            _check_network(each)
        if not 1024 <= self.port <= 65535:
            problem = f"{self.port} is not a port that a program without rights can have"
            raise InvalidSettings("workers.join.port", problem, "Write 1024 to 65535")

    def check_address(self) -> None:
        """Raises InvalidSettings unless the address is that of one machine."""
        try:
            address = ipaddress.ip_address(self.address)
        except ValueError:
            address = None
        if address is None or address.is_unspecified or address.is_multicast or str(address) != self.address:
            problem = f"{self.address!r} is not the IP address of one machine"
            remedy = "Write the address by which the other machines reach this one, as in 10.0.0.5"
            raise InvalidSettings("workers.join.address", problem, remedy)


def check_networks(given: object, *, pods: bool) -> None:
    """Check whether networks are given where they are needed, and nowhere else. Raise InvalidSettings.

    Args:
        given: true, if there are any.
        pods: whether the run is in pods. Without a network, their policy would admit everybody.
    """
    if bool(given) != pods:
        problem = "no machine may connect to pods" if pods else "only pods are closed for other machines"
        remedy = 'Write the machines\' networks: Join(networks=["10.0.0.0/16"])' if pods else "Leave it out"
        raise InvalidSettings("workers.join.networks", problem, remedy)


def _check_network(text: str) -> None:
    try:
        network = ipaddress.ip_network(text)
    except ValueError:
        network = None
    if network is None or not network.prefixlen or str(network) != text or "%" in text:
        problem = f"{text!r} is not a network of a part of all addresses"
        raise InvalidSettings("workers.join.networks", problem, "Write the machines' network, as in 10.0.0.0/16")


def joined_name(number: int) -> str:
    """Return the name of the worker that joined as that one, from 1 on."""
    return f"{_JOINED}{number}"


def is_joined(worker: str) -> bool:
    """Whether a worker of that name joined by hand. No place calls its own workers so."""
    return _NAME.fullmatch(worker) is not None


@dataclass(frozen=True, slots=True)
class JoinToken:
    """Permission for one machine to join one run, once."""

    pin: bytes
    """SHA-256 of the launcher's certificate."""
    secret: bytes = field(repr=False)

    @classmethod
    def create(cls, pin: bytes) -> Self:
        """Return a new token for the run whose launcher has that certificate."""
        return cls(pin, secrets.token_bytes(_BYTES))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises InvalidSettings, without the text, for what is not a token."""
        try:
            plain = base64.urlsafe_b64decode(text.removeprefix(_PREFIX)) if text.startswith(_PREFIX) else b""
        except (ValueError, binascii.Error):
            plain = b""
        token = cls(plain[:_BYTES], plain[_BYTES:])
        if len(plain) != 2 * _BYTES or token.text() != text:
            remedy = "Write all of what elastic-training token RUN has printed"
            raise InvalidSettings("--token", "it is not a token of a run", remedy)
        return token

    def text(self) -> str:
        """Return what a person passes on. Secret."""
        return _PREFIX + base64.urlsafe_b64encode(self.pin + self.secret).decode()

    @property
    def digest(self) -> str:
        """Name under which the run knows it. Not secret."""
        return digest_of(self.secret.hex())


@dataclass(frozen=True, slots=True)
class OfferedToken:
    """A token of a run whose launcher is in a pod."""

    digest: str
    until: datetime
    launcher: int
    """Number of the launcher's term: the next launcher does not know which tokens were used."""


@dataclass(frozen=True, slots=True)
class OfferedTokens:
    """Those of a run that were not removed yet."""

    tokens: tuple[OfferedToken, ...] = ()

    def and_one(self, token: OfferedToken, now: datetime) -> OfferedTokens:
        """Return these and another, without those of no use any more. Raise Conflict if there are too many."""
        kept = [each for each in self.tokens if now < each.until and each.launcher == token.launcher]
        if len(kept) >= MAX_TOKENS:
            raise Conflict(TOO_MANY)
        return OfferedTokens((*kept, token))


def check_door(address: str, pin: str) -> None:
    """Check what the document of a launcher says of itself. Raise InvalidDocument.

    Args:
        address: of one machine.
        pin: digest of its certificate, hexadecimal.
    """
    try:
        is_address = str(ipaddress.ip_address(address)) == address and "%" not in address
    except ValueError:
        is_address = False
    if not is_address or not _PIN.fullmatch(pin):
        raise InvalidDocument("the document of the run's launcher has no address and certificate by which it is joined")


def join_command(run: str, address: str, port: int, token: str) -> str:
    """Return the command by which a machine joins a run. Secret, as the token is.

    Args:
        run: its name.
        address: of its launcher.
        port: of its launcher.
        token: for one machine.
    """
    host = f"[{address}]" if ":" in address else address
    return f"elastic-join {run} --at {host}:{port} --token {token}"


def digest_of(secret: str) -> str:
    """Return the digest of a secret as a request to join has it, which may be any text."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def pin_of(certificate: bytes) -> bytes:
    """Return the digest by which a launcher's certificate is recognized, given as DER."""
    return hashlib.sha256(certificate).digest()
