"""The pod that a host of a pool is in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from typing_extensions import override

from elastic_runtime.pool.connection import Streams, connect
from elastic_runtime.pool.place import HostPlace


@dataclass(frozen=True, slots=True)
class HostSettings:
    """What a host in a pod is told."""

    pod: str
    """Name of this pod."""
    address: str
    """Its address."""
    node: str
    keeper: tuple[str, int]
    """Address and port to dial."""
    tls: Path
    """Folder with a certificate of the pool."""
    identity: Path
    """File with a token that proves which pod this is."""
    agents: Path
    """Folder that the host may make for its agents' certificates."""
    grace: float
    """Seconds from SIGTERM to the end of this pod."""


class PodHostPlace(HostPlace):
    """Args: settings: of this pod."""

    connects_warm = True
    idle_limit = None  # A ReplicaSet has made it, and would make it anew.

    def __init__(self, settings: HostSettings) -> None:
        self._settings = settings
        self.name, self.agents = settings.pod, settings.agents

    @override
    async def connect(self) -> Streams:
        return await connect(*self._settings.keeper, self._settings.tls, "the pool")

    @override
    def arguments(self, worker: str, notices: str) -> tuple[str, ...]:
        here = self._settings
        return ("--node", here.node, "--address", here.address, "--identity", str(here.identity))

    @override
    def keeper_is_away(self) -> None:
        """Its ReplicaSet has another one start."""

    @override
    def children(self) -> tuple[int, ...]:
        return ()
