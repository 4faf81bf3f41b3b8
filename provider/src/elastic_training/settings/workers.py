"""Settings of workers: how many train, and on what machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.run.join import JOIN_PORT, JoinSpec, check_networks
from elastic_runtime.run.spec import WorkersSpec
from elastic_training import kubernetes_syntax as syntax
from elastic_training.settings.machines import machine
from elastic_training.settings.templating import Settings, all_known, is_template
from elastic_training.settings.values import BoolOrTemplate, IntOrTemplate, parse_bool, settings_of, whole_number

_GPU_RESOURCE = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True)
class Join(Settings):
    """Where other machines join a run by hand, with a token of ``elastic-training token RUN``."""

    address: str | Any = ""
    """IP address by which they reach this machine. Launcher and ranks listen on it. Leave it out in pods and in Slurm,
    Ray and Spark: it is the one by which the cluster reaches the launcher."""
    port: IntOrTemplate = JOIN_PORT
    """Of the launcher. Two runs whose launchers run on one machine need two. In pods it is fixed."""
    networks: Sequence[str] | Any = ()
    """In pods only, and needed there: networks of the machines, as in ``["10.0.0.0/16"]`` or a text with commas. They
    may connect to the run's pods."""

    def __post_init__(self) -> None:
        self.known(address="127.0.0.1").spec()

    def known(self, **stand_ins: Any) -> Join:
        """As :meth:`Settings.known`, also of each network."""
        copy = Settings.known(self, **stand_ins)
        if isinstance(copy.networks, list | tuple):
            object.__setattr__(copy, "networks", tuple(each for each in copy.networks if not is_template(each)))
        return copy

    @all_known()
    def spec(self) -> JoinSpec:
        """Return the launcher's specification. Raise InvalidSettings, also for rendered values."""
        port = whole_number("workers.join.port", self.port, least=0)
        given = self.networks.split(",") if isinstance(self.networks, str) else self.networks
        if not isinstance(given, Sequence):
            problem = f"{self.networks!r:.60} is not a list of networks"
            raise InvalidSettings("workers.join.networks", problem, 'Write ["10.0.0.0/16"]')
        networks = (str(each).strip() for each in given)
        return JoinSpec(str(self.address), port, tuple(each for each in networks if each))


@dataclass(frozen=True, slots=True)
class Workers(Settings):
    """Number and hardware of workers.

    ``Workers(min=2, max=4)`` starts with 2 workers, and ``Workers(min=2, start=4, max=4)`` with 4.
    """

    min: IntOrTemplate = 1
    """Fewest workers that train, at least 1. Below it, the run is suspended."""
    start: IntOrTemplate | None = None
    """Workers to begin with. None: ``min``."""
    max: IntOrTemplate | None = None
    """Most workers that can be requested. None: ``start``."""
    slots: IntOrTemplate | None = None
    """Ranks of each worker. None: one a GPU, or 1 without GPUs. If there are more GPUs, each rank sees its share."""
    machine: str | Any | None = None
    """Type of the machines, as their cloud names it: ``"g5.12xlarge"``.

    It sets ``gpus``, ``gpu_resource``, ``shm`` and the nodes' labels and taints, unless they are given. With
    ``cluster="local"``, it sets only the slots.
    """
    gpus: IntOrTemplate = 0
    """GPUs of each worker: a limit on ``gpu_resource``, and a toleration of the taint of that name.

    With ``cluster="local"``, that machine must have so many, and its workers share them.
    """
    gpu_resource: str = _GPU_RESOURCE
    """Resource name of the cluster's device plugin, always with its domain."""
    shm: str | None = None
    """Size of ``/dev/shm``, such as ``"2Gi"``, in memory and counted against the worker's memory limit. In pods only.

    None leaves the container runtime's 64 MiB, which is too little for NCCL and for data loaders with workers.
    """
    spot: BoolOrTemplate = False
    """Whether workers run only on nodes that the cloud may reclaim, and the launcher on none of them. In pods only."""
    greedy: BoolOrTemplate = False
    """Whether a training in a pool takes workers that nobody wishes for, up to ``max``, until somebody does."""

    join: Join | Mapping[str, Any] | Any | None = None
    """Lets other machines join by hand. Not with ``mode="fixed"``."""

    def __post_init__(self) -> None:
        self.known().spec()
        if self.join and not is_template(self.join):
            self._join()

    @all_known()
    def join_spec(self) -> JoinSpec | None:
        """Return where machines may join. None: they may not. Raise InvalidSettings, also for rendered values."""
        return self._join().spec() if self.join else None

    def join_address(self) -> str | None:
        """Return where machines may join; empty: it is left out. None: they may not, or it is not known yet."""
        if not self.join or is_template(self.join) or is_template(address := self._join().address):
            return None
        return str(address)

    def check_networks(self, *, pods: bool) -> None:
        """Whether they are given where they are needed, and nowhere else. Raise InvalidSettings."""
        join = self._join()
        if pods and not is_template(join.port) and join.known().spec().port != JOIN_PORT:
            raise InvalidSettings("workers.join.port", "a launcher in a pod listens on port 7077", "Leave it out")
        if not is_template(join.networks):
            check_networks(join.networks, pods=pods)

    def _join(self) -> Join:
        return settings_of(Join, "workers.join", self.join, 'Join("10.0.0.5")')

    def equipped(self) -> Workers:
        """Return the settings with the values that ``machine`` implies. Raise InvalidSettings."""
        if not self.machine or is_template(self.machine):
            return self
        found = machine(self.machine)
        own = self.gpu_resource != _GPU_RESOURCE
        gpus = self.gpus if is_template(self.gpus) else whole_number("workers.gpus", self.gpus, least=0)
        return replace(
            self,
            machine=None,
            gpus=gpus or found.gpus,
            gpu_resource=self.gpu_resource if own else found.gpu_resource,
            shm=self.shm or found.shm,
        )

    @all_known()
    def spec(self) -> WorkersSpec:
        """Return the launcher's specification. Raise InvalidSettings, also for rendered values."""
        if self.machine:
            return self.equipped().spec()
        gpus = whole_number("workers.gpus", self.gpus, least=0)
        syntax.extended_resource("workers.gpu_resource", self.gpu_resource)
        if self.shm:
            syntax.quantity("workers.shm", self.shm)
        parse_bool("workers.spot", self.spot)
        parse_bool("workers.greedy", self.greedy)
        least = whole_number("workers.min", self.min, least=1)
        start = least if self.start is None else whole_number("workers.start", self.start, least=1)
        most = start if self.max is None else whole_number("workers.max", self.max, least=1)
        slots = max(1, gpus) if self.slots is None else whole_number("workers.slots", self.slots, least=1)
        if gpus > slots and gpus % slots:
            raise InvalidSettings(
                "workers.slots",
                f"{slots} slots cannot share {gpus} GPUs evenly",
                "Write a divisor of workers.gpus, or leave slots out for one a GPU",
            )
        return WorkersSpec(least, start, most, slots)
