"""Interface of the place that a pool is in, for its keeper and its hosts: this machine, or pods."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Protocol

from elastic_runtime.pool.connection import Streams
from elastic_runtime.pool.settings import PoolSettings
from elastic_runtime.pool.status import PoolStatus


class KeeperPlace(Protocol):
    """Place of a keeper. All methods but the coroutines return at once."""

    on_demand: bool
    """Whether hosts are started as workers are needed, with one worker each. If not, one host has all workers."""
    returning: float
    """Seconds in which launchers and hosts connect to a keeper that replaces another one. It assigns no worker before,
    unless all hosts are there."""
    address: str
    """On which the keeper listens."""
    tls: Path
    """Folder with the keeper's certificate."""

    def ports(self) -> tuple[int, ...]:
        """Return ports to listen on, in order of preference."""

    def previous_workers(self) -> int:
        """Return the number of workers under the previous keeper; 0: there was none."""

    async def open(self, port: int, on_change: Callable[[], None]) -> None:
        """Publish the port, and start to watch.

        Args:
            port: on which the keeper listens.
            on_change: called when the result of another method may have changed.

        Raises:
            OSError: the port cannot be written.
        """

    def is_up(self) -> bool:
        """Whether the pool is up. It can be taken down while its keeper runs."""

    def settings(self) -> PoolSettings | None:
        """Return the present settings; None: they cannot be read."""

    def scale(self, workers: int, busy: Collection[str], hosts: Collection[str]) -> None:
        """Start or end hosts in the background, until there are hosts for so many workers. Called repeatedly.

        Args:
            workers: wanted number.
            busy: names of hosts with an agent, which end last.
            hosts: names of connected hosts.
        """

    def give_up(self, taken: Collection[str], stuck: Collection[str]) -> None:
        """End hosts in the background that are of no use any more; on demand only. Called repeatedly.

        Args:
            taken: names of hosts whose machines will be taken.
            stuck: names of hosts that do not end an agent, or do not say so.
        """

    def trouble(self) -> str:
        """Return why hosts do not start, as sentences; empty: no reason is known."""

    def publish(self, status: PoolStatus) -> None:
        """Write the status in the background."""

    async def close(self) -> None:
        """Release everything; the keeper ends."""


class HostPlace(Protocol):
    """Place of a host."""

    name: str
    """Name of the host, unique in the pool."""
    agents: Path
    """Folder for its agents' certificates. The host creates and removes it."""
    connects_warm: bool
    """Whether the host connects only once its frameworks are imported, so that the keeper prefers other hosts until
    then. If not, it connects at once, and receives early that the pool is taken down."""

    async def connect(self) -> Streams:
        """Connect to the keeper, in one attempt. Raise ClusterUnavailable."""

    def arguments(self, worker: str, notices: str) -> tuple[str, ...]:
        """Return command-line arguments of an agent that depend on the place.

        Args:
            worker: its name.
            notices: folder in which its notice may appear; empty: there is none.
        """

    def keeper_is_away(self) -> None:
        """Start another keeper, if this place can. Called while the host is not connected to one."""

    def children(self) -> tuple[int, ...]:
        """Return ids of processes that this place has started and that must not be ended with the agents."""

    @property
    def idle_limit(self) -> float | None:
        """Seconds without a keeper and without an agent, after which the host ends; None: no limit."""
