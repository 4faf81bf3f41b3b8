"""The environment variables that torchrun gives a rank, as torch 2.13's ``LocalElasticAgent`` sets them.

Ranks of one machine, or of one pod, are what torchrun calls a node: ``LOCAL_RANK`` numbers them. Where a worker has
GPUs, its agent adds to this: see :func:`elastic_runtime.agent.devices.local_environment`.
"""

from __future__ import annotations

from dataclasses import dataclass

from elastic_runtime.engines.local_ranks import Local

_ADDRESS = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
"""Nothing listens there: scripts look whether these are set, and ``env://`` does not ask them."""
_MOST_RESTARTS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Place:
    """Place of one process in its world, which is its only one."""

    rank_id: str
    rank: int
    """From 0."""
    size: int
    """Ranks of the world."""
    local: Local
    """Where it runs."""
    restarts: int
    """How often processes were started before in the run, also for planned changes, which torchrun does not count."""
    interface: str
    """Network interface of the rank's traffic with the others."""


def environment_of(place: Place) -> dict[str, str]:
    """Return the environment of one process."""
    rank, size, local = place.rank, place.size, place.local
    of_groups = {"GROUP_RANK": local.host, "ROLE_RANK": rank, "GROUP_WORLD_SIZE": local.hosts, "ROLE_WORLD_SIZE": size}
    of_restarts = {"TORCHELASTIC_RESTART_COUNT": place.restarts, "TORCHELASTIC_MAX_RESTARTS": _MOST_RESTARTS}
    of_host = {"LOCAL_RANK": local.rank, "LOCAL_WORLD_SIZE": local.size}
    numbers = {"RANK": rank, "WORLD_SIZE": size, **of_host, **of_groups, **of_restarts}
    return {
        **{name: str(number) for name, number in numbers.items()},
        **_ADDRESS,
        "ROLE_NAME": "default",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "GLOO_SOCKET_IFNAME": place.interface,
        "NCCL_SOCKET_IFNAME": place.interface,
    }
