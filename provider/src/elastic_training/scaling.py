"""When a wanted size is reached: the decision of :class:`~elastic_training.sensors.scale_workers.ScaleWorkersSensor`.

Pure, so that poke, reschedule and the trigger cannot disagree.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from elastic_runtime.status import Phase, Status

STALE = timedelta(minutes=2)
"""A run that had ended before the sensor began may be the one of an earlier try, with the new one still to come; for so
long after its begin the sensor waits for that."""


class Scaling(StrEnum):
    """How far a wish for another size has come."""

    WAITING = "waiting"
    """Not there yet."""
    REACHED = "reached"
    """The world has the wanted size."""
    OVERRULED = "overruled"
    """Somebody has asked for yet another size since."""
    ENDED = "ended"
    """The training ended before."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A state, and why."""

    scaling: Scaling
    reason: str
    """For people."""


def judge(status: Status, wanted: int, slots: int, asked: int, began: datetime, now: datetime) -> Verdict:
    """How far it is.

    Args:
        status: of the run.
        wanted: workers that the sensor wants.
        slots: ranks per worker.
        asked: workers that the run is asked for at present.
        began: when this try of the sensor began.
        now: the present time.
    """
    if status.phase.final:
        ended = f"the training run {status.run} has {status.phase} ({status.reason})"
        if status.finished is not None and status.finished < began and now < began + STALE:
            return Verdict(Scaling.WAITING, f"{ended}, before this task began; waiting for a new try of the training")
        return Verdict(Scaling.ENDED, f"{ended} before it had {wanted} workers")
    if asked != wanted:
        return Verdict(Scaling.OVERRULED, f"{wanted} workers were asked for, and since then {asked}")
    ranks = wanted * slots
    reached = status.phase is Phase.RUNNING and status.target_size == wanted and status.world_size == ranks
    text = f"{status.world_size} of {ranks} ranks train, phase {status.phase}"
    return Verdict(Scaling.REACHED if reached else Scaling.WAITING, text)
