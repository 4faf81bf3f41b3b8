"""Environment variables of a rank that are Horovod's, or about it."""

from __future__ import annotations

PLACE = tuple(f"HOROVOD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE"))
"""Of a rank in a world."""
RESTARTS = "ELASTIC_RUNTIME_RESTARTS"
"""How often processes of a script that is restarted for each world were started before, in the run."""


def place_of(rank: int, size: int) -> dict[str, str]:
    """Return the variables of :data:`PLACE`: each rank is a host of its own."""
    return dict(zip(PLACE, map(str, (rank, size, 0, 1, rank, size)), strict=True))


def environment_of(rank_id: str, interface: str) -> dict[str, str]:
    """Return the environment of a rank in any world.

    Args:
        rank_id: the launcher's name for it.
        interface: network interface of its traffic with the others.
    """
    return {
        "HOROVOD_HOSTNAME": rank_id,
        "HOROVOD_ELASTIC": "1",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": interface,
        # Until the process has its own (store.py): a Horovod that is not adapted fails, and does not train alone.
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": "1",
        "NCCL_SOCKET_IFNAME": interface,
    }
