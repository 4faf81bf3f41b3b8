"""Observing of a run besides its status, each on request: a part of its spec."""

from __future__ import annotations

from dataclasses import dataclass

from elastic_runtime.errors import InvalidSettings

TRACES = "ELASTIC_RUNTIME_TRACES"
"""Environment variable of a rank: the folder into which it writes what its agent is to save."""
PROFILE = "ELASTIC_RUNTIME_PROFILE"
"""Environment variable of a rank: ``FIRST:COUNT``, the global steps that torch's profiler is to see."""
TENSORBOARD = "ELASTIC_RUNTIME_TENSORBOARD"
"""Environment variable of a rank: set when what it reports is to be written as TensorBoard's events, too."""
TIMELINE_SAMPLES = "ELASTIC_RUNTIME_TIMELINE_SAMPLES"
"""Environment variable of a rank: as HOROVOD_TIMELINE, of which samples suffice."""
MOST_PROFILED = 100
"""Steps: torch keeps every operation of them in memory, and writes some megabytes a step."""


@dataclass(frozen=True, slots=True)
class ProfileSpec:
    """Which steps torch's profiler sees, on every rank."""

    first: int
    """Global step at whose commit it begins."""
    steps: int

    def __post_init__(self) -> None:
        if self.first < 0 or not 0 < self.steps <= MOST_PROFILED:
            problem = f"{self.steps} steps from step {self.first} on cannot be profiled"
            raise InvalidSettings("observe.profile_steps", problem, f"Write (first, count), count 1 to {MOST_PROFILED}")


@dataclass(frozen=True, slots=True)
class PrometheusSpec:
    """Port and token of the launcher's endpoint for Prometheus."""

    port: int
    """0: any that is free; the launcher's log says which."""
    token_file: str
    """Path, where the launcher runs, of the token that a scraper has to show."""
    secret: str = ""
    """``NAME/KEY`` of the Secret that is that file, where the launcher is a pod."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise InvalidSettings("observe.prometheus.port", f"{self.port} is not a port", "Write 0 to 65535")
        if not self.token_file:
            raise InvalidSettings("observe.prometheus", "token_file is empty", "Name the file that holds the token")


@dataclass(frozen=True, slots=True)
class ObserveSpec:
    """All off unless asked for. What is saved needs a checkpoint store."""

    timeline: bool = False
    """Horovod's timeline, all generations in one."""
    profile: ProfileSpec | None = None
    tensorboard: bool = False
    prometheus: PrometheusSpec | None = None
    sampled: bool = False
    """Whether samples of the timeline suffice; what becomes of them is no warning."""

    @property
    def saves(self) -> bool:
        """Whether ranks leave files for their agent to save."""
        return self.timeline or self.profile is not None or self.tensorboard
