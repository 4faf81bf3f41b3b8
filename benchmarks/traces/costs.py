"""What everything takes: measured where ``results.json`` has a figure, assumed and named so where it has none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.run.spec import CheckpointSpec


class Side(StrEnum):
    """Whose figures of a measure."""

    OURS = "ours"
    PEER = "peer"


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


@dataclass(frozen=True, slots=True)
class Priced:
    """Costs, and where each of them is from."""

    costs: Costs
    sources: Mapping[str, str] = field(default_factory=dict)
    """Measure by field; a field without one is assumed."""

    def lines(self) -> list[str]:
        """For people, one a field."""
        return [
            f"{each.name} {getattr(self.costs, each.name):.3g} s ({self.sources.get(each.name, 'assumed')})"
            for each in fields(self.costs)
        ]


MEASURES: Mapping[str, tuple[str, ...]] = {
    "session_start": ("start",),
    "grow": ("scale_out",),
    "leave": ("planned_leave_pause",),
    "forced_reset": ("sigkill_mean", "sigkill"),
    "checkpoint_stall": ("checkpoint_stall_async_1gb",),
    "checkpoint_write": ("checkpoint_durable_1gb",),
}
"""Field to measures of ``results.json``, the best first. A whole start (launcher included) stands for a session's. The
peer's checkpoints are those of ``torch.distributed.checkpoint.async_save``: the best that a stock script can do."""

MISSED = 4.2
"""Seconds from a machine's vanishing to the next world of the others, at most, in runs as those of
``tests/local/test_losses.py`` with steps of a second: see :mod:`elastic_runtime.launcher.decision.silence`."""


def read_costs(measures: Mapping[str, Mapping[str, object]], side: Side) -> Priced:
    """Take each cost from the first of its measures that has a figure for that side.

    Args:
        measures: what ``results.json`` says.
        side: whose.
    """
    found: dict[str, float] = {"checkpoint_every": CheckpointSpec("file:///").every}
    sources = {"checkpoint_every": "the runtime's default, for both"}
    if side is Side.OURS:
        found["silent_reset"] = MISSED
        sources["silent_reset"] = "measured with steps of a second"
    else:
        sources["silent_reset"] = "Gloo's default, 30, and a reset"
    for name, candidates in MEASURES.items():
        for measure in candidates:
            value = measures.get(measure, {}).get(side)
            if isinstance(value, int | float):
                found[name], sources[name] = float(value), f"`{measure}`, {side}"
                break
    return Priced(replace(Costs(), **found), sources)


def with_given(priced: Priced, given: Mapping[str, float]) -> Priced:
    """Some costs as a user says.

    Raises:
        InvalidSettings: there is no such cost, or it is negative.
    """
    known = {each.name for each in fields(Costs)}
    if unknown := sorted(given.keys() - known):
        raise InvalidSettings(f"costs.{unknown[0]}", "there is no such cost", f"Choose from {', '.join(sorted(known))}")
    return Priced(replace(priced.costs, **given), {**priced.sources, **dict.fromkeys(given, "given")})
