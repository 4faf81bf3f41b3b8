"""What everything takes, in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.printable import printable

_MOST = 1e9
"""Seconds; a checkpoint that is due so late is never written."""


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
            if not 0 <= getattr(self, each.name) <= _MOST:
                problem = f"{getattr(self, each.name)} is not a number of seconds"
                raise InvalidSettings(f"costs.{each.name}", problem, "Write 0 or more")

    def scaled(self, factor: float) -> Costs:
        """Every pause of the training times so much; not what happens beside it."""
        pauses = ("session_start", "grow", "leave", "forced_reset", "checkpoint_stall", "checkpoint_read")
        return replace(self, **{name: getattr(self, name) * factor for name in pauses})

    def given(self, given: Mapping[str, float]) -> Costs:
        """Some of them as a user says. Raises InvalidSettings for one that does not exist, or is negative."""
        known = {each.name for each in fields(self)}
        if unknown := sorted(given.keys() - known):
            remedy = f"Choose from {', '.join(sorted(known))}"
            raise InvalidSettings(f"costs.{printable(unknown[0])}", "there is no such cost", remedy)
        return replace(self, **given)

    def detection(self, *, silent: bool) -> float:
        """Of a loss: until the others know, and begin to reset."""
        return max(0.0, self.silent_reset - self.forced_reset) if silent else 0.0


MISSED = 4.2
"""Seconds from a machine's vanishing to the next world of the others, at most, in runs as those of
``tests/local/test_losses.py`` with steps of a second: see :mod:`elastic_runtime.launcher.decision.silence`."""
FREE = Costs(**{each.name: 0.0 for each in fields(Costs) if each.name != "checkpoint_every"})
"""Nothing takes any time."""
