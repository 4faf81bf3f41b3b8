"""What a user writes about a training, checked as early as it is known.

Every number may be a template (``"{{ params.max_workers }}"``). A value that is known when the DAG file is parsed is
checked then; what a template yields is checked in ``execute``, before anything is created. All complaints are
:class:`~elastic_runtime.errors.InvalidSettings`, with the field's name and the remedy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from itertools import pairwise
from os import PathLike
from typing import Any, TypeVar

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.spec import CheckpointSpec, NoticeService, RecoveryMode, RecoverySpec, Timing, WorkersSpec
from elastic_training import kubernetes_syntax as syntax

S = TypeVar("S", bound="Settings")

IntOrTemplate = int | str
"""A whole number, or a template of one."""
Duration = timedelta | float | str
"""A time span, seconds, or a template of seconds."""


def is_template(value: object) -> bool:
    """Whether Jinja has something to do with this value, so that it is not known yet."""
    return isinstance(value, str) and ("{{" in value or "{%" in value)


@dataclass(frozen=True, slots=True)
class Settings:
    """Base of settings whose fields may be templates."""

    def rendered(self: S, render: Callable[[Any], Any]) -> S:
        """A copy with every string rendered.

        The copy is not checked: that is for ``execute``, where a bad value ends the task without another try, and not
        for the rendering, where it would look like a broken template.
        """
        copy = object.__new__(type(self))
        for field in fields(self):
            object.__setattr__(copy, field.name, _rendered(getattr(self, field.name), render))
        return copy


def _rendered(value: object, render: Callable[[Any], Any]) -> Any:
    """Strings wherever they are: in settings within settings, in lists, as values of mappings."""
    match value:
        case Settings():
            return value.rendered(render)
        case str():
            return render(value)
        case Mapping():
            return {key: _rendered(each, render) for key, each in value.items()}
        case list() | tuple():
            each_rendered = [_rendered(each, render) for each in value]
            return each_rendered if isinstance(value, list) else tuple(each_rendered)
    return value


@dataclass(frozen=True, slots=True)
class Workers(Settings):
    """How many workers train."""

    min: IntOrTemplate = 1
    """Fewest workers that train; below it the run is suspended. At least 1."""
    start: IntOrTemplate | None = None
    """Workers to begin with; None: as ``min``."""
    max: IntOrTemplate | None = None
    """Most workers that anybody may ask for; None: as ``start``."""
    slots: IntOrTemplate | None = None
    """Ranks per worker; None: one a GPU, or 1 without GPUs."""
    gpus: IntOrTemplate = 0
    """GPUs of each worker. Where workers are processes of one machine, this only gives the slots."""
    gpu_resource: str = "nvidia.com/gpu"
    """What the cluster's device plugin calls them."""
    shm: str | None = None
    """Size of ``/dev/shm``, as in ``"2Gi"``: kept in memory, and counted against the worker's memory limit. For data
    loaders and NCCL, to which the usual 64 MiB are too little. None: the container runtime's. In pods only."""
    spot: bool | str = False
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
        self._check_hardware()

    def _check_hardware(self) -> None:
        if not is_template(self.gpus):
            whole_number("workers.gpus", self.gpus, least=0)
        if not is_template(self.gpu_resource):
            syntax.extended_resource("workers.gpu_resource", self.gpu_resource)
        if self.shm and not is_template(self.shm):
            syntax.quantity("workers.shm", self.shm)
        if isinstance(self.spot, str) and not is_template(self.spot):
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

    def spec(self) -> WorkersSpec:
        """For the launcher. Raises InvalidSettings, also for what only rendering has shown."""
        self.__post_init__()
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

    def spec(self, uri: str, fence: int) -> CheckpointSpec:
        """For the launcher. Raises InvalidSettings."""
        self.__post_init__()
        return CheckpointSpec(
            uri=uri,
            every=seconds_of("checkpoints.every", self.every),
            keep=whole_number("checkpoints.keep", self.keep, least=1),
            fence=fence,
        )


def check_command(command: object) -> None:
    """As far as a command is known at parse: words may still be templates, or outputs of other tasks.

    Raises:
        InvalidSettings: empty, or one string, which would be cut into letters.
    """
    remedy = 'Write a list, as in ["python", "train.py"]'
    if isinstance(command, str) or not isinstance(command, Sequence):
        raise InvalidSettings("command", f"{command!r} is not a list of words", remedy)
    if not command or command[0] == "":
        raise InvalidSettings("command", f"{list(command)!r} names no program", remedy)


def command_words(command: object) -> tuple[str, ...]:
    """The rendered command of one rank. Raises InvalidSettings."""
    check_command(command)
    assert isinstance(command, Sequence)
    for index, word in enumerate(command):
        if isinstance(word, bool) or not isinstance(word, str | int | float | PathLike):
            raise InvalidSettings(f"command[{index}]", f"{word!r} is not a word", "Write a string, a number or a path")
    return tuple(str(word) for word in command)


def check_environment(environment: object) -> Mapping[str, str]:
    """Extra environment of every rank, values as strings. Raises InvalidSettings."""
    if not isinstance(environment, Mapping):
        raise InvalidSettings("environment", f"{environment!r} is not a mapping", 'Write {"NAME": "value"}')
    for name in environment:
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise InvalidSettings("environment", f"{name!r} is not a variable's name", 'Write {"NAME": "value"}')
    return {name: str(value) for name, value in environment.items()}


def check_store(checkpoint: str) -> None:
    """Raises InvalidSettings when no checkpoint store knows this URI."""
    # Imported here, so that a DAG file pays for the stores only when it has checkpoints.
    from elastic_runtime.checkpoint.store import validate_store_uri

    validate_store_uri(checkpoint)


def parse_bool(field: str, value: bool | str) -> bool:
    """A rendered flag, as Jinja prints Python's, JSON's and YAML's. Raises InvalidSettings for anything else."""
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
