"""What everything takes, in seconds."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from elastic_runtime.errors import InvalidSettings


@dataclass(frozen=True, slots=True)
class Costs:
    """All in seconds. The defaults are what nothing has been measured for."""

    machine_start: float = 30.0
    """From a machine's arrival until a worker can start there: join the cluster, pull the image."""
    worker_start: float = 5.0
    """From there until its ranks can start: the pod, the agent, importing torch and Horovod."""
    session_start: float = 5.0
    """Ranks that can start → first step of a world that has no predecessor."""
    grow: float = 1.0
    """Pause of a planned reset with newcomers. The measure's whole time from wish to step: the pause is shorter."""
    leave: float = 1.0
    """Pause of a planned reset without."""
    forced_reset: float = 1.0
    """From a loss whose connections were closed (a process killed) to the next step of the others."""
    silent_reset: float = 30.2
    """From a loss without closed connections (a machine vanishes) to the next step of the others; with stock Horovod
    ``HOROVOD_GLOO_TIMEOUT_SECONDS``, 30 by default, and a reset."""
    checkpoint_every: float = 60.0
    """From the begin of a durable checkpoint to the next one's."""
    checkpoint_stall: float = 0.5
    """Pause of the training for one: the copy to host memory."""
    checkpoint_write: float = 10.0
    """From there until it is durable."""
    checkpoint_read: float = 10.0
    """By a session that starts from one."""

    def __post_init__(self) -> None:
        for each in fields(self):
            if getattr(self, each.name) < 0:
                raise InvalidSettings(f"costs.{each.name}", f"{getattr(self, each.name)} is negative", "Write seconds")

    def scaled(self, factor: float) -> Costs:
        """Every pause of the training times so much; not what happens beside it."""
        pauses = ("session_start", "grow", "leave", "forced_reset", "checkpoint_stall", "checkpoint_read")
        return replace(self, **{name: getattr(self, name) * factor for name in pauses})

    def detection(self, *, silent: bool) -> float:
        """Of a loss: until the others know, and begin to reset."""
        return max(0.0, self.silent_reset - self.forced_reset) if silent else 0.0


FREE = Costs(**{each.name: 0.0 for each in fields(Costs) if each.name != "checkpoint_every"})
"""Nothing takes any time."""
