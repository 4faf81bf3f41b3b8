"""What everything takes: measured where ``results.json`` has a figure, assumed and named so where it has none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum

from elastic_runtime.rehearsal.costs import MISSED, Costs
from elastic_runtime.run.spec import CheckpointSpec


class Side(StrEnum):
    """Whose figures of a measure."""

    OURS = "ours"
    PEER = "peer"


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
    return Priced(priced.costs.given(given), {**priced.sources, **dict.fromkeys(given, "given")})
