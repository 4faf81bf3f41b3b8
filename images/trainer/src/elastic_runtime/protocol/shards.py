"""Messages by which ranks get the shards of a step: see :mod:`elastic_runtime.launcher.decision.shard_queues`."""

from __future__ import annotations

from dataclasses import dataclass

MOST_SHARDS = 100_000
"""Shards of one step."""
MOST_APART = 60.0
"""Seconds between two meetings of asynchronous ranks, at most: others wait as long for one that leaves its world."""
SHARD_REPEAT = 5.0
"""Seconds after which a rank asks again for a shard. The answer is the same."""


@dataclass(frozen=True, slots=True)
class ShardWanted:
    """Request of a rank for one of a step's shards, repeated until :class:`ShardGiven` answers it.

    A request for the shard that the rank has got last renews its lease.
    """

    stream: str
    """Name of the attribute that counts the steps."""
    digest: str
    """Of what the stream consists of, the same on all ranks."""
    step: int
    """From 1."""
    size: int
    """Shards of the step, over all ranks; :data:`MOST_SHARDS` at most."""
    number: int
    """Shards of the step that the rank has already."""
    serial: int = 0
    """Of the answer."""
    seconds: float | None = None
    """After so long, the step ends with the shards that ranks have got by then. None: with all of its shards."""
    lease: float = 0.0
    """Seconds that a rank has for one shard; 0: no limit."""


@dataclass(frozen=True, slots=True)
class ShardGiven:
    """Launcher to agent, agent to rank: the answer to :class:`ShardWanted`."""

    serial: int
    position: int | None = None
    """Of the shard in its step, from 0; None: ranks get no more of them."""
    refused: str = ""
    """Why there is no answer; empty: there is."""
    given: int = 0
    """With None: shards of the step that ranks have got, from position 0 on."""
