"""Horovod's own knobs: what ``horovodrun`` takes as flags, checked when the DAG is parsed.

Names are those of the flags, and what reaches the ranks are the variables that the flags set
(``horovod/runner/common/util/config_parser.py`` of Horovod 0.28.1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from elastic_runtime.errors import InvalidSettings
from elastic_training.settings.templating import Settings, all_known, is_template
from elastic_training.settings.values import (
    BoolOrTemplate,
    IntOrTemplate,
    parse_bool,
    real_number,
    settings_of,
    whole_number,
)

LOG_LEVELS = ("trace", "debug", "info", "warning", "error", "fatal")
_LOCAL = "each slot is a host of its own here, so no ranks are local to each other, and it has no effect"
ELSEWHERE = {
    **dict.fromkeys(("hierarchical_allreduce", "hierarchical_allgather", "torus_allreduce"), (_LOCAL, "Leave it out")),
    **dict.fromkeys(
        ("timeline", "timeline_filename", "timeline_mark_cycles"),
        ("a timeline has a setting of its own", "Write observe=Observe(timeline=True)"),
    ),
    **dict.fromkeys(
        ("compression", "fp16_allreduce"),
        (
            "compression is an argument in the script",
            "Write hvd.DistributedOptimizer(..., compression=hvd.Compression.fp16)",
        ),
    ),
    **dict.fromkeys(
        ("min_np", "max_np", "num_proc"),
        ("how many ranks there are follows from workers", "Write Workers(min=1, max=4)"),
    ),
    "reset_limit": ("it is about recovery", "Write recovery=Recovery(reset_limit=...)"),
    "elastic_timeout": ("it is about recovery", "Write recovery=Recovery(max_wait=...)"),
    "slots": ("it is about workers", "Write workers=Workers(slots=...)"),
}
"""Other flags of ``horovodrun``: why each is not a field here, and what to do."""
_NEEDS_FIXED_SIZE = (
    "this run may change its size, and autotune hangs when rank 0 leaves (horovod#2835)",
    'Leave it out, or write Recovery(mode="fixed"), Workers(min=4) without another max, and no size plan',
)


@dataclass(frozen=True, slots=True)
class Horovod(Settings):
    """Horovod's own settings, with the names of ``horovodrun``'s flags. None sets no variable: Horovod's default."""

    fusion_threshold_mb: IntOrTemplate | None = None
    """MiB of tensors that are reduced together, Horovod's 128; 0: each for itself."""
    cycle_time_ms: float | IntOrTemplate | None = None
    """Milliseconds between two looks for tensors that are ready on all ranks, Horovod's 1."""
    cache_capacity: IntOrTemplate | None = None
    """Responses that are remembered, so that known tensors are not negotiated again, Horovod's 1024; 0: none."""
    disable_group_fusion: BoolOrTemplate | None = None
    """Do not fuse a group of tensors (``num_groups``) with others."""
    stall_check: BoolOrTemplate | None = None
    """Warn of tensors that some ranks have not submitted, Horovod's yes."""
    stall_check_warning_time_seconds: IntOrTemplate | None = None
    """Seconds until it warns, Horovod's 60."""
    stall_check_shutdown_time_seconds: IntOrTemplate | None = None
    """Seconds until it ends the ranks, more than the warning's; Horovod's 0: never."""
    gloo_timeout_seconds: IntOrTemplate | None = None
    """Longest wait for a peer inside one operation, Horovod's 30. A lost peer is noticed earlier than that."""
    num_nccl_streams: IntOrTemplate | None = None
    """NCCL streams, for builds with NCCL. Horovod's default is 1."""
    thread_affinity: IntOrTemplate | None = None
    """Number of the core that Horovod's own thread is bound to, in every rank; for workers of one slot."""
    autotune: BoolOrTemplate | None = None
    """Find fusion threshold, cycle time and cache by trying. Only for runs that never change their size:
    ``Recovery(mode="fixed")``, ``max`` as ``min``, no size plan."""
    autotune_log_file: str | Any | None = None
    """CSV file that rank 0 writes each try to, where it runs."""
    autotune_warmup_samples: IntOrTemplate | None = None
    """Tries that do not count, Horovod's 3."""
    autotune_steps_per_sample: IntOrTemplate | None = None
    """Batches of a try, Horovod's 10."""
    autotune_bayes_opt_max_samples: IntOrTemplate | None = None
    """Most tries, Horovod's 20."""
    autotune_gaussian_process_noise: float | IntOrTemplate | None = None
    """0 to 1, Horovod's 0.8."""
    log_level: str | None = None
    """``trace``, ``debug``, ``info``, ``warning`` (Horovod's), ``error`` or ``fatal``; on the ranks' stderr."""
    log_with_timestamp: BoolOrTemplate | None = None
    """Time in Horovod's own lines, Horovod's yes."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not is_template(value):
                _KNOBS[field.name].read(f"horovod.{field.name}", value)
        self._check_stall()

    def _check_stall(self) -> None:
        name = "horovod.stall_check_shutdown_time_seconds"
        given = self.stall_check_warning_time_seconds, self.stall_check_shutdown_time_seconds
        if any(value is None or is_template(value) for value in given):
            return
        warning, shutdown = (whole_number(name, value, least=0) for value in given)
        if 0 < shutdown <= warning:
            problem = f"{shutdown} is not more than the warning's {warning}"
            raise InvalidSettings(name, problem, "Write more, or 0 for never")

    @all_known()
    def environment(self, *, fixed_size: bool) -> dict[str, str]:
        """Variables of every rank.

        Args:
            fixed_size: whether the run never has another size.

        Raises:
            InvalidSettings: also for autotune in a run that may.
        """
        self.__post_init__()
        given = {name: value for name in _KNOBS if (value := getattr(self, name)) is not None}
        if not given.pop("autotune", None) or not parse_bool("horovod.autotune", self.autotune):
            given = {name: value for name, value in given.items() if not name.startswith("autotune")}
        else:
            if not fixed_size:
                raise InvalidSettings("horovod.autotune", *_NEEDS_FIXED_SIZE)
            given["autotune"] = True
        return {_KNOBS[name].variable: _KNOBS[name].read(f"horovod.{name}", value) for name, value in given.items()}


def merged(environment: Mapping[str, str], knobs: Mapping[str, str]) -> dict[str, str]:
    """Both together. Raises InvalidSettings for a variable that both say, and not the same."""
    for variable, value in knobs.items():
        if environment.get(variable, value) != value:
            name = next(name for name, knob in _KNOBS.items() if knob.variable == variable)
            problem = f"horovod.{name} says {value}, and this says {environment[variable]!r}"
            raise InvalidSettings(f"environment.{variable}", problem, "Write one of the two")
    return {**environment, **knobs}


def horovod_of(value: object) -> Horovod:
    """Settings, or the same as a mapping. Raises InvalidSettings."""
    for name in value if isinstance(value, Mapping) else ():
        if name in ELSEWHERE:
            raise InvalidSettings(f"horovod.{name}", *ELSEWHERE[name])
    return settings_of(Horovod, "horovod", value, "Horovod(cycle_time_ms=2)")


@dataclass(frozen=True, slots=True)
class _Knob:
    variable: str
    read: Callable[[str, Any], str]
    """Checks a value, of that field, and writes it as the variable has it."""


def _whole(field: str, value: object, *, unit: int = 1, least: int = 0) -> str:
    return str(whole_number(field, value, least=least) * unit)


def _real(field: str, value: object, *, most: float) -> str:
    return f"{real_number(field, value, least=0.0, most=most):g}"


def _flag(field: str, value: object, *, turned: bool = False) -> str:
    return "1" if parse_bool(field, value) is not turned else "0"


def _level(field: str, value: object) -> str:
    if str(value).lower() not in LOG_LEVELS:
        raise InvalidSettings(field, f"{value!r} is not a level", f"Write one of {', '.join(LOG_LEVELS)}")
    return str(value).lower()


def _path(field: str, value: object) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise InvalidSettings(field, f"{value!r} is not a path", 'Write "/tmp/autotune.csv"')
    return value


_KNOBS = {
    "fusion_threshold_mb": _Knob("HOROVOD_FUSION_THRESHOLD", partial(_whole, unit=1 << 20)),
    "cycle_time_ms": _Knob("HOROVOD_CYCLE_TIME", partial(_real, most=10_000)),
    "cache_capacity": _Knob("HOROVOD_CACHE_CAPACITY", _whole),
    "disable_group_fusion": _Knob("HOROVOD_DISABLE_GROUP_FUSION", _flag),
    "stall_check": _Knob("HOROVOD_STALL_CHECK_DISABLE", partial(_flag, turned=True)),
    "stall_check_warning_time_seconds": _Knob("HOROVOD_STALL_CHECK_TIME_SECONDS", partial(_whole, least=1)),
    "stall_check_shutdown_time_seconds": _Knob("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", _whole),
    "gloo_timeout_seconds": _Knob("HOROVOD_GLOO_TIMEOUT_SECONDS", partial(_whole, least=1)),
    "num_nccl_streams": _Knob("HOROVOD_NUM_NCCL_STREAMS", partial(_whole, least=1)),
    "thread_affinity": _Knob("HOROVOD_THREAD_AFFINITY", _whole),
    "autotune": _Knob("HOROVOD_AUTOTUNE", _flag),
    "autotune_log_file": _Knob("HOROVOD_AUTOTUNE_LOG", _path),
    "autotune_warmup_samples": _Knob("HOROVOD_AUTOTUNE_WARMUP_SAMPLES", _whole),
    "autotune_steps_per_sample": _Knob("HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", partial(_whole, least=1)),
    "autotune_bayes_opt_max_samples": _Knob("HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES", partial(_whole, least=1)),
    "autotune_gaussian_process_noise": _Knob("HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE", partial(_real, most=1)),
    "log_level": _Knob("HOROVOD_LOG_LEVEL", _level),
    "log_with_timestamp": _Knob("HOROVOD_LOG_HIDE_TIME", partial(_flag, turned=True)),
}
