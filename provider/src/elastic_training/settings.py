"""What a user writes about a training, checked as early as it is known.

Every value may be a template (``"{{ params.max_workers }}"``), or the output of another task. A value that is known
when the DAG file is parsed is checked then; what comes later is checked in ``execute``, before anything is created. All
complaints are :class:`~elastic_runtime.errors.InvalidSettings`, with the field's name and the remedy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from itertools import pairwise
from typing import Any, TypeVar

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.spec import CheckpointSpec, NoticeService, RecoveryMode, RecoverySpec, Timing, WorkersSpec
from elastic_training import kubernetes_syntax as syntax
from elastic_training.machines import machine
from elastic_training.templating import Settings, all_known, is_template

S = TypeVar("S", bound=Settings)

IntOrTemplate = int | str | Any
"""A whole number, a template of one, or the output of another task."""
BoolOrTemplate = bool | str | Any
"""True or False, a template of one of them, or the output of another task."""
Duration = timedelta | float | str | Any
"""A time span, seconds, a template of seconds, or the output of another task."""


_GPU_RESOURCE = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True)
class Workers(Settings):
    """How many workers train. ``Workers(min=2, max=4)`` starts with 2; ``Workers(min=2, start=4, max=4)`` with 4."""

    min: IntOrTemplate = 1
    """Fewest workers that train; below it the run is suspended. At least 1."""
    start: IntOrTemplate | None = None
    """Workers to begin with; None: as ``min``."""
    max: IntOrTemplate | None = None
    """Most workers that anybody may ask for; None: as ``start``."""
    slots: IntOrTemplate | None = None
    """Ranks per worker; None: one a GPU, or 1 without GPUs."""
    machine: str | Any | None = None
    """Type of the machines, as their cloud calls it (``"g5.12xlarge"``): gives ``gpus``, ``gpu_resource``, ``shm`` and
    the nodes' labels and taints, unless they are given. Where workers are processes of one machine, only the slots."""
    gpus: IntOrTemplate = 0
    """GPUs of each worker. With ``cluster="local"`` that machine must have so many; all its workers share them."""
    gpu_resource: str = _GPU_RESOURCE
    """What the cluster's device plugin calls them."""
    shm: str | None = None
    """Size of ``/dev/shm``, as in ``"2Gi"``: kept in memory, and counted against the worker's memory limit. For data
    loaders and NCCL, to which the usual 64 MiB are too little. None: the container runtime's. In pods only."""
    spot: BoolOrTemplate = False
    """Workers go to nodes that the cloud may take back, the launcher stays off them. In pods only."""

    def __post_init__(self) -> None:
        known: list[tuple[str, int]] = []
        for name in ("min", "start", "max", "slots"):
            value = getattr(self, name)
            if value is not None and not is_template(value):
                known.append((f"workers.{name}", whole_number(f"workers.{name}", value, least=1)))
        sizes = [pair for pair in known if pair[0] != "workers.slots"]
        for (low, few), (high, many) in pairwise(sizes):
            if few > many:
                raise InvalidSettings(low, f"{few} is more than {high}, which is {many}", "Write min <= start <= max")
        self.equipped()._check_hardware()

    def equipped(self) -> Workers:
        """With what follows from ``machine``, where nothing else is given. Raises InvalidSettings."""
        if not self.machine or is_template(self.machine):
            return self
        found = machine(self.machine)
        own = self.gpu_resource != _GPU_RESOURCE
        return replace(
            self,
            machine=None,
            gpus=self.gpus or found.gpus,
            gpu_resource=self.gpu_resource if own else found.gpu_resource,
            shm=self.shm or found.shm,
        )

    def _check_hardware(self) -> None:
        if not is_template(self.gpus):
            whole_number("workers.gpus", self.gpus, least=0)
        if not is_template(self.gpu_resource):
            syntax.extended_resource("workers.gpu_resource", self.gpu_resource)
        if self.shm and not is_template(self.shm):
            syntax.quantity("workers.shm", self.shm)
        if not is_template(self.spot):
            parse_bool("workers.spot", self.spot)
        if self.slots is None or any(is_template(value) for value in (self.slots, self.gpus)):
            return
        slots, gpus = int(self.slots), int(self.gpus)
        if gpus > slots and gpus % slots:
            raise InvalidSettings(
                "workers.slots",
                f"{slots} slots cannot share {gpus} GPUs evenly",
                "Write a divisor of workers.gpus, or leave slots out for one a GPU",
            )

    @all_known()
    def spec(self) -> WorkersSpec:
        """For the launcher. Raises InvalidSettings, also for what only rendering has shown."""
        self.__post_init__()
        if self.machine:
            return self.equipped().spec()
        least = whole_number("workers.min", self.min, least=1)
        start = least if self.start is None else whole_number("workers.start", self.start, least=1)
        most = start if self.max is None else whole_number("workers.max", self.max, least=1)
        slots = max(1, int(self.gpus)) if self.slots is None else whole_number("workers.slots", self.slots, least=1)
        return WorkersSpec(least, start, most, slots)


@dataclass(frozen=True, slots=True)
class Recovery(Settings):
    """What happens when workers are lost and ranks fail. Bare numbers are seconds."""

    mode: str = RecoveryMode.ELASTIC.value
    """``elastic``: train with whatever is there, from ``workers.min``. ``fixed``: only at exactly the wanted size."""
    max_wait: Duration = timedelta(minutes=30)
    """Longest time with too few workers before the run fails."""
    start_timeout: Duration = timedelta(minutes=10)
    """Longest time from the launcher's start to the first training."""
    reset_limit: IntOrTemplate | None = None
    """Most resets forced by lost workers or failed ranks; resizes do not count. None: no limit."""
    rank_failures: IntOrTemplate = 10
    """Most ranks that may end by themselves with an error, over the whole run."""
    lease: Duration = timedelta(hours=6)
    """A run that nobody in Airflow has waited for, for so long, ends itself; 0: never."""
    unwatched: Duration = timedelta(minutes=15)
    """The same for a run that no trigger has begun to watch since its task created or adopted it. Longer than any
    triggerer of yours may be away or full; of no effect where ``lease`` is 0."""
    notices: str = NoticeService.AUTO.value
    """Which metadata service announces that a machine will be taken, beside SIGTERM: ``aws``, ``aws-rebalance``
    (recommendations to rebalance count too), ``gcp``, ``azure``, ``alibaba``, ``none``; ``auto``: on Kubernetes the one
    that is found, on this machine none."""

    def __post_init__(self) -> None:
        if not is_template(self.mode) and self.mode not in tuple(RecoveryMode):
            modes = " or ".join(repr(mode.value) for mode in RecoveryMode)
            raise InvalidSettings("recovery.mode", f"{self.mode!r} is not one of its values", f"Write {modes}")
        if not is_template(self.notices) and self.notices not in tuple(NoticeService):
            known = ", ".join(NoticeService)
            raise InvalidSettings(
                "recovery.notices", f"{self.notices!r} is not one of its values", f"Write one of {known}"
            )
        for name in ("max_wait", "start_timeout", "lease", "unwatched"):
            if not is_template(value := getattr(self, name)):
                seconds_of(f"recovery.{name}", value, zero=name == "lease")
        for name in ("reset_limit", "rank_failures"):
            if (value := getattr(self, name)) is not None and not is_template(value):
                whole_number(f"recovery.{name}", value, least=0)

    @all_known()
    def spec(self) -> RecoverySpec:
        """For the launcher. Raises InvalidSettings."""
        self.__post_init__()
        return RecoverySpec(
            mode=RecoveryMode(self.mode),
            max_wait=seconds_of("recovery.max_wait", self.max_wait),
            start_timeout=seconds_of("recovery.start_timeout", self.start_timeout),
            reset_limit=None
            if self.reset_limit is None
            else whole_number("recovery.reset_limit", self.reset_limit, least=0),
            rank_failures=whole_number("recovery.rank_failures", self.rank_failures, least=0),
            notices=NoticeService(self.notices),
        )

    @all_known()
    def timing(self) -> Timing:
        """For the launcher. Raises InvalidSettings."""
        return Timing(
            lease=seconds_of("recovery.lease", self.lease, zero=True),
            unwatched=seconds_of("recovery.unwatched", self.unwatched),
        )


@dataclass(frozen=True, slots=True)
class Checkpoints(Settings):
    """How often durable checkpoints are written. Bare numbers are seconds."""

    every: Duration = timedelta(minutes=1)
    """Between two of them; one more is written on a reclaim notice and on the last commit."""
    keep: IntOrTemplate = 2
    """How many complete ones stay. At least 1."""

    def __post_init__(self) -> None:
        if not is_template(self.every):
            seconds_of("checkpoints.every", self.every)
        if not is_template(self.keep):
            whole_number("checkpoints.keep", self.keep, least=1)

    @all_known()
    def spec(self, uri: str, fence: int, owner: str) -> CheckpointSpec:
        """For the launcher. Raises InvalidSettings."""
        self.__post_init__()
        return CheckpointSpec(
            uri=uri,
            every=seconds_of("checkpoints.every", self.every),
            keep=whole_number("checkpoints.keep", self.keep, least=1),
            fence=fence,
            owner=owner,
        )


def settings_of(kind: type[S], field: str, value: object, example: str) -> S:
    """Settings, or the same as a mapping, which is what another task can return.

    Args:
        kind: of settings.
        field: as the user writes it.
        value: given, or rendered.
        example: of what to write.

    Raises:
        InvalidSettings: it is neither, or has a name that these settings do not have.
    """
    if isinstance(value, kind):
        return value
    if not isinstance(value, Mapping):
        raise InvalidSettings(field, f"a {type(value).__name__} is not a {kind.__name__}", f"Write {example}")
    names = [each.name for each in fields(kind)]
    for name in value:
        if name not in names:
            raise InvalidSettings(f"{field}.{name}", "there is no such field", f"Write one of {', '.join(names)}")
    return kind(**value)


def parse_bool(field: str, value: object) -> bool:
    """A flag, given or rendered, as Jinja prints Python's, JSON's and YAML's. Raises InvalidSettings for others."""
    text = str(value).strip().lower()
    if text in ("true", "1", "yes", "on"):
        return True
    if text in ("false", "0", "no", "off", "none", ""):
        return False
    raise InvalidSettings(field, f"{value!r} is neither true nor false", "Write True or False, or a template of one")


def whole_number(field: str, value: object, *, least: int) -> int:
    """A whole number, given or rendered. Raises InvalidSettings under ``least`` or for anything else."""
    remedy = f"Write a whole number of {least} or more"
    try:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError
        number = int(value)
    except ValueError:
        raise InvalidSettings(field, f"{value!r} is not a whole number", remedy) from None
    if number < least:
        raise InvalidSettings(field, f"{number} is less than {least}", remedy)
    return number


def real_number(field: str, value: object, *, least: float, most: float) -> float:
    """A number, given or rendered. Raises InvalidSettings outside of these bounds or for anything else."""
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        number = float(value)
    except ValueError:
        number = math.nan
    if not least <= number <= most:
        raise InvalidSettings(
            field, f"{value!r} is not a number from {least:g} to {most:g}", "Write one, or a template of one"
        )
    return number


def seconds_of(field: str, value: object, *, zero: bool = False) -> float:
    """A time span in seconds, given or rendered. Raises InvalidSettings unless positive; ``zero``: or 0."""
    remedy = "Write a timedelta or seconds, " + ("0 or more" if zero else "more than 0")
    try:
        if isinstance(value, bool) or not isinstance(value, timedelta | int | float | str):
            raise ValueError
        seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    except ValueError:
        raise InvalidSettings(field, f"{value!r} is not a time span", remedy) from None
    if not math.isfinite(seconds) or seconds < 0 or (seconds == 0 and not zero):
        raise InvalidSettings(field, f"{value!r} is {seconds:g} s", remedy)
    return seconds
