"""What a machine that joins by hand and the launcher say to each other, once each: a token for a certificate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from elastic_runtime.errors import InvalidDocument
from elastic_runtime.protocol import messages


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """Machine: let me join."""

    run: str
    """The run's name."""
    secret: str = field(repr=False)
    """That of the token, hexadecimal."""
    certificate: str
    """PEM of the request for one."""
    runtime: str
    """Version of elastic-runtime there."""
    address: str
    """IP address of its ranks."""
    named: str
    """The one that its name resolves to; empty: none."""


@dataclass(frozen=True, slots=True)
class JoinGranted:
    """Launcher: you may, by that name."""

    worker: str
    certificate: str
    """PEM."""
    authority: str
    """PEM of the run's authority."""
    slots: int
    """Of each worker of the run."""
    grace: float
    """Seconds from SIGTERM to the end of a worker."""


@dataclass(frozen=True, slots=True)
class JoinRefused:
    """Launcher: you may not."""

    reason: str


JoinMessage = JoinRequest | JoinGranted | JoinRefused
_VOCABULARY: messages.Vocabulary[JoinMessage] = messages.Vocabulary(JoinMessage)


def encode(message: JoinMessage) -> bytes:
    """Return the message as one line."""
    return _VOCABULARY.write(message)


def decode(plain: Mapping[str, Any]) -> JoinMessage:
    """Raises InvalidDocument for a type that is not in it, or a wrong field."""
    message = _VOCABULARY.read(plain)
    if message is None:
        raise InvalidDocument(f"no message about joining is of type {plain.get('type')!r}")
    return message
