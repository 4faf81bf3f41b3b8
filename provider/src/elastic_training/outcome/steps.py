"""A run's step as people read it: none yet, or none that anybody knows, since the script reports none."""

from __future__ import annotations

UNKNOWN = "unknown"
REMEDY = "a script without DurableState has to call report(step)"
"""Remedy for an unknown step."""


def step_text(step: int | None, *, trained: bool, none: str) -> str:
    """For people.

    Args:
        step: the newest that was told.
        trained: whether the run has ever had a world.
        none: what to write where no step can be yet.
    """
    if step is None:
        return UNKNOWN if trained else none
    return f"{step:,}"
