"""How a launcher in a pod reaches the pool that lends its workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class PoolAccess:
    """Addresses and certificates, of the pool and of this launcher."""

    uid: str
    """Incarnation of the pool, as in its labels."""
    keeper: tuple[str, int]
    """Address and port of the keeper."""
    tls: Path
    """Folder with a certificate of the pool."""
    launcher: str
    """``ADDRESS:PORT`` of this launcher, for the agents."""
    certificates: Path
    """Folder with the certificates of the run's agents."""
    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Credentials of the checkpoint store, as variables of the ranks."""
