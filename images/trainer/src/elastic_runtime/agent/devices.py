"""Which accelerators a slot of a worker gets, and which a worker of this machine: by the variables of their vendors."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_DEVICE = re.compile(r"\d+(\.\d+)*|(GPU|MIG)-.+", re.ASCII)
"""An index (of Intel's with a tile), a UUID or the begin of one, a MIG device. Where something else stands, as -1 or
Slurm's NoDevFiles, no device from there on is visible (`CUDA Environment Variables`_).

.. _CUDA Environment Variables:
   https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#cuda-environment-variables
"""
Pools = Mapping[str, Sequence[str]]
"""Devices that may be divided: their names by the variable that makes them visible to a program."""


@dataclass(frozen=True, slots=True)
class Vendor:
    """How the devices of one vendor are found and selected."""

    variables: tuple[str, ...]
    """Each names visible devices. The first one that is set is divided; where none is, the first of all."""
    count: Callable[[Path], int]
    """Devices below a root directory (``/``), which that variable would number from 0."""


def _nvidia(root: Path) -> int:
    return len(list(root.glob("dev/nvidia[0-9]*")))


def _amd(root: Path) -> int:
    """Those of the ROCm driver that this container may use; sysfs lists the machine's, processors too."""
    nodes = root.glob("sys/class/kfd/kfd/topology/nodes/*/properties")
    minors = [_properties(node).get("drm_render_minor", "0") for node in nodes]
    return sum(minor != "0" and (root / f"dev/dri/renderD{minor}").exists() for minor in minors)


def _intel(root: Path) -> int:
    """Cards; where one has several tiles, name them in the variable."""
    vendors = [root / f"sys/class/drm/{node.name}/device/vendor" for node in root.glob("dev/dri/renderD*")]
    return sum(vendor.exists() and vendor.read_text().strip() == "0x8086" for vendor in vendors)


def _properties(file: Path) -> dict[str, str]:
    pairs = (line.split(maxsplit=1) for line in file.read_text().splitlines())
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


VENDORS = (
    Vendor(("CUDA_VISIBLE_DEVICES",), _nvidia),
    Vendor(("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"), _amd),
    Vendor(("ZE_AFFINITY_MASK",), _intel),
)


def pools(environment: Mapping[str, str], root: Path = Path("/")) -> dict[str, list[str]]:
    """The devices here, as far as the environment leaves them; no entry where there are none."""
    found = dict(_pool(vendor, environment, root) for vendor in VENDORS)
    return {variable: devices for variable, devices in found.items() if devices}


def most_devices(pools: Pools) -> int:
    """Return the number of devices of the vendor that has most; 0: there are none."""
    return max(map(len, pools.values()), default=0)


def _pool(vendor: Vendor, environment: Mapping[str, str], root: Path) -> tuple[str, list[str]]:
    for variable in vendor.variables:
        if variable in environment:
            names = (name.strip() for name in environment[variable].split(","))
            return variable, list(itertools.takewhile(_DEVICE.fullmatch, names))
    return vendor.variables[0], [str(index) for index in range(vendor.count(root))]


def slot_environment(slot: int, slots: int, pools: Pools) -> dict[str, str]:
    """Give a slot the devices that are its own.

    Horovod sees each slot as a host, so ``hvd.local_rank()`` is 0 everywhere: with one device visible to each rank,
    scripts that choose theirs by it are right. Where there are fewer devices than slots, nothing is set.
    """
    return {
        variable: ",".join(devices[slot * share : (slot + 1) * share])
        for variable, devices in pools.items()
        if (share := len(devices) // slots)
    }


def local_environment(given: Mapping[str, str], slot: int, slots: int, pools: Pools) -> dict[str, str]:
    """For a rank to which its engine gives a ``LOCAL_RANK``, as torchrun does: all devices of its worker.

    Where there are none, or fewer than slots, nothing changes. Ranks of other workers of this machine see other
    devices: where any are in the world, ``LOCAL_RANK`` is that of the worker alone, as the index of a device has to be.

    Args:
        given: the engine's.
        slot: the rank's.
        slots: of this worker.
        pools: its devices.
    """
    visible = {variable: devices for variable, devices in pools.items() if len(devices) >= slots}
    if not visible or "LOCAL_RANK" not in given:
        return {}
    environment = {variable: ",".join(devices) for variable, devices in visible.items()}
    if int(given["LOCAL_WORLD_SIZE"]) > min(map(len, visible.values())):
        environment |= {"LOCAL_RANK": str(slot), "LOCAL_WORLD_SIZE": str(slots)}
    return environment


def lacking(slots: int, pools: Pools) -> str:
    """Which devices do not suffice for one each, for people; empty: they do, or there are none."""
    return ", ".join(f"{len(devices)} in {variable}" for variable, devices in pools.items() if 0 < len(devices) < slots)


@dataclass(frozen=True, slots=True)
class WorkerShares:
    """Divides the devices of one machine among its workers: an equal share each, at least one device a slot.

    Args:
        pools: the machine's.
        workers: most that there can be.
        slots: of each.
    """

    pools: Pools
    workers: int
    slots: int

    def environment(self, index: int) -> dict[str, str]:
        """Return the environment of that worker, from 0. If there are too few devices, they are shared in turn."""
        return {variable: ",".join(shares[index % len(shares)]) for variable, shares in self._all()}

    def are_shared(self, index: int) -> bool:
        """Whether the worker with that index has its devices together with one of a lower index."""
        return any(index >= len(shares) for _, shares in self._all())

    def _all(self) -> Iterator[tuple[str, list[Sequence[str]]]]:
        for variable, devices in self.pools.items():
            size = min(max(self.slots, len(devices) // self.workers), len(devices))
            yield variable, [devices[start : start + size] for start in range(0, len(devices) - size + 1, size)]
