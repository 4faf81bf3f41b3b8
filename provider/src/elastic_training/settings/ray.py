"""Settings of runs in Ray."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.ray.jobs import RaySpec
from elastic_training.settings.templating import Settings, all_known, is_template
from elastic_training.settings.values import Duration, seconds_of, settings_of

_MEMORY = re.compile(r"([1-9][0-9]{0,11})([KMGT]?)")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_OF_ACTORS = ("DEFAULT", "SPREAD")
_OF_GROUPS = ("PACK", "STRICT_PACK", "STRICT_SPREAD")
_NAME = re.compile(r"[\w.:/-]{1,200}")


@dataclass(frozen=True, slots=True)
class Ray(Settings):
    """What the actors of a run want. Each worker is one actor; the launcher is a job."""

    cpus: float | Any = 1
    """Of a worker."""
    memory: str | Any | None = None
    """Of a worker: ``"16G"``. None: as much as there is, without a reservation."""
    resources: Mapping[str, float] | Any | None = None
    """Further resources of a worker: ``{"spot": 1}``."""
    labels: Mapping[str, str] | Any | None = None
    """Labels of nodes for workers: ``{"ray.io/accelerator-type": "H100"}``."""
    strategy: str | Any | None = None
    """``"SPREAD"``: over as many nodes as Ray can. None or ``"DEFAULT"``: Ray fills a node to a half, then the next."""
    launcher_resources: Mapping[str, float] | Any | None = None
    """Resources of the launcher, which needs one CPU and 1 GiB of memory. None: it is on the head node."""
    grace: Duration = 30.0
    """Time between SIGTERM and the end of a process; also that of a drained node that has no deadline."""
    python: str | Any | None = None
    """Interpreter with Ray and ``elastic-runtime`` on the nodes. None: the connection's, or ``python``."""
    runtime_env: Mapping[str, Any] | Any | None = None
    """Ray's runtime environment of launcher and workers."""

    def __post_init__(self) -> None:
        self.known().spec("python", gpus=0)

    @all_known()
    def spec(self, python: str, *, gpus: int) -> RaySpec:
        """Return what the launcher needs of them. Raise InvalidSettings, also for rendered values.

        Args:
            python: interpreter, unless one is set.
            gpus: of a worker.
        """
        demands: dict[str, Any] = {"num_cpus": _amount("ray.cpus", self.cpus)}
        if gpus:
            demands["num_gpus"] = gpus
        if self.memory:
            demands["memory"] = _memory(self.memory)
        if resources := _resources("ray.resources", self.resources):
            demands["resources"] = resources
        if self.labels:
            demands["label_selector"] = _labels(self.labels)
        if self.strategy:
            demands["scheduling_strategy"] = _strategy(self.strategy)
        launcher = _resources("ray.launcher_resources", self.launcher_resources)
        return RaySpec(
            python=str(self.python or python),
            demands=demands,
            launcher_demands={"resources": launcher} if launcher else {},
            runtime_env=_runtime_env(self.runtime_env),
            grace=seconds_of("ray.grace", self.grace),
        )


def _amount(field: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number <= 1_000_000:
        raise InvalidSettings(field, f"{value!r} is not an amount", "Write a number from 0 on, as 1 or 0.5")
    return number


def _memory(value: Any) -> int:
    found = _MEMORY.fullmatch(str(value))
    if not found:
        raise InvalidSettings("ray.memory", f"{value!r} is not a size", 'Write it as in "16G"')
    return int(found[1]) * _UNITS[found[2]]


def _resources(field: str, value: Any) -> dict[str, float]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(name, str) and _NAME.fullmatch(name) for name in value):
        raise InvalidSettings(field, f"{value!r} are not amounts by name", 'Write {"spot": 1}')
    if wrong := sorted({"CPU", "GPU", "memory"} & set(value)):
        remedy = "Write cpus=, memory= and Workers(gpus=)" if field == "ray.resources" else "Use another resource"
        raise InvalidSettings(field, f"{wrong[0]} is not a resource of one's own", remedy)
    return {name: _amount(f"{field}.{name}", amount) for name, amount in value.items()}


def _labels(value: Any) -> dict[str, str]:
    entries = value.items() if isinstance(value, Mapping) else [(None, None)]
    if not all(isinstance(name, str) and isinstance(text, str) and name and text for name, text in entries):
        raise InvalidSettings("ray.labels", f"{value!r} are not labels", 'Write {"ray.io/accelerator-type": "H100"}')
    return dict(entries)


def _strategy(value: Any) -> str:
    if value in _OF_ACTORS:
        return str(value)
    remedy = 'Write "SPREAD", or leave it out'
    if value in _OF_GROUPS:
        problem = f"{value!r} is for placement groups, whose number of bundles is fixed, and workers come and go"
        if value == "STRICT_SPREAD":
            remedy += ". For one worker on each node, have a worker want all of a node's GPUs or CPUs"
        raise InvalidSettings("ray.strategy", problem, remedy)
    raise InvalidSettings("ray.strategy", f"{value!r} is not a scheduling strategy of Ray's actors", remedy)


def _runtime_env(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    remedy = 'Write {"pip": ["einops"]}, as for Ray'
    if not isinstance(value, Mapping) or not isinstance(value.get("env_vars", {}), Mapping):
        raise InvalidSettings("ray.runtime_env", f"a {type(value).__name__} is not a runtime environment", remedy)
    try:
        return dict(json.loads(json.dumps(dict(value))))
    except (TypeError, ValueError) as error:
        raise InvalidSettings("ray.runtime_env", f"it is not JSON: {error}", remedy) from None


def ray_of(value: Ray | Mapping[str, Any] | Any) -> Any:
    """What an operator was given, as :class:`Ray`; None, or a template, as it is. Raises InvalidSettings."""
    if value is None or is_template(value):
        return value
    return settings_of(Ray, "ray", value, "Ray(cpus=4)")
