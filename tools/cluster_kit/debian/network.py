"""A bridge for each node, so that a node can fall silent as a dead machine does, and one for this machine itself."""

from __future__ import annotations

from pathlib import Path

from cluster_kit.debian.places import HOST_ADDRESS, HOST_BRIDGE, bridge, pod_gateway, pod_subnet
from cluster_kit.errors import ClusterError
from cluster_kit.shell import run, succeeds


def make_host() -> None:
    """The address at which pods and kubelets reach this machine, whatever nodes there are."""
    _make_bridge(HOST_BRIDGE, f"{HOST_ADDRESS}/32")
    # Pods of different nodes talk to each other through this machine.
    forward = Path("/proc/sys/net/ipv4/ip_forward")
    if forward.read_text().strip() != "1":
        forward.write_text("1\n")


def make_node(index: int) -> None:
    """The network of a node's pods, in service."""
    _make_bridge(bridge(index), f"{pod_gateway(index)}/24")
    if _has_black_hole(index):
        run("ip", "route", "delete", "blackhole", pod_subnet(index))


def silence_node(index: int) -> None:
    """Cut a node off: no packet leaves it, and none that is sent to it is answered, not even by an error."""
    if succeeds("ip", "link", "show", bridge(index)):
        run("ip", "link", "set", bridge(index), "down")
    if not _has_black_hole(index):
        run("ip", "route", "add", "blackhole", pod_subnet(index))


def remove(indexes: range) -> None:
    """All that this module made; what is not there is no error."""
    for index in indexes:
        if _has_black_hole(index):
            run("ip", "route", "delete", "blackhole", pod_subnet(index))
    for name in (HOST_BRIDGE, *map(bridge, indexes)):
        if succeeds("ip", "link", "show", name):
            run("ip", "link", "delete", name)


def _has_black_hole(index: int) -> bool:
    return bool(run("ip", "route", "show", "type", "blackhole", "exact", pod_subnet(index)).strip())


def _make_bridge(name: str, address: str) -> None:
    if not succeeds("ip", "link", "show", name):
        if address.partition("/")[0] in run("ip", "-4", "-oneline", "address"):
            raise ClusterError(f"{address} is in use on this machine; the lab needs it for {name}")
        run("ip", "link", "add", name, "type", "bridge")
        run("ip", "address", "add", address, "dev", name)
    run("ip", "link", "set", name, "up")
