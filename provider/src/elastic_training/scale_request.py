"""A wish for another number of workers, on its way to being true."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from elastic_runtime.status import Phase, Status
from elastic_training.clusters.base import check_size
from elastic_training.clusters.cluster import Cluster

STALE = timedelta(minutes=2)
"""A run that had ended before the sensor began may be the one of an earlier try, with the new one still to come; for so
long after its begin the sensor waits for that."""


class ScaleState(StrEnum):
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

    scaling: ScaleState
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
            return Verdict(
                ScaleState.WAITING, f"{ended}, before this task began; waiting for a new try of the training"
            )
        return Verdict(ScaleState.ENDED, f"{ended} before it had {wanted} workers")
    if asked != wanted:
        return Verdict(ScaleState.OVERRULED, f"{wanted} workers were asked for, and since then {asked}")
    ranks = wanted * slots
    reached = status.phase is Phase.RUNNING and status.target_size == wanted and status.world_size == ranks
    text = f"{status.world_size} of {ranks} ranks train, phase {status.phase}"
    return Verdict(ScaleState.REACHED if reached else ScaleState.WAITING, text)


@dataclass(frozen=True, slots=True)
class ScaleRequest:
    """What a sensor wants of a run."""

    name: str
    """Of the run."""
    workers: int
    request: str
    """Names the wish: asked once per incarnation of the run."""
    began: datetime
    """When this try of the sensor began."""

    async def pursue(self, cluster: Cluster, now: datetime) -> Verdict:
        """One look; asks for the size when that has not been done, and the training has begun.

        Not before: a wish that came while the first workers start would make the first world, instead of changing it.

        Raises:
            InvalidSettings: the size is out of the training's bounds.
            RunNotFound: there is no run yet.
        """
        ref = await cluster.find(self.name)
        spec = await cluster.spec(ref)
        check_size(self.workers, spec.workers)
        status = await cluster.status(ref)
        if status.phase in (Phase.PENDING, Phase.STARTING):
            return Verdict(ScaleState.WAITING, f"the training has not begun: {status.reason}")
        if not status.phase.final and await cluster.set_size(ref, self.workers, self.request):
            return Verdict(ScaleState.WAITING, f"asked for {self.workers} workers; {status.world_size} ranks train")
        return judge(status, self.workers, spec.workers.slots, await cluster.size(ref), self.began, now)
