"""A wish for another number of workers, on its way to being true."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from elastic_runtime.status import Phase
from elastic_training.clusters.base import Cluster, check_size
from elastic_training.scaling import Scaling, Verdict, judge


@dataclass(frozen=True, slots=True)
class SizeWish:
    """What a sensor wants of a run."""

    name: str
    """Of the run."""
    workers: int
    request: str
    """Names the wish: asked once per incarnation of the run."""
    began: datetime
    """When this try of the sensor began."""

    def pursue(self, cluster: Cluster, now: datetime) -> Verdict:
        """One look; asks for the size when that has not been done, and the training has begun.

        Not before: a wish that came while the first workers start would make the first world, instead of changing it.

        Raises:
            InvalidSettings: the size is out of the training's bounds.
            RunNotFound: there is no run yet.
        """
        ref = cluster.find(self.name)
        spec = cluster.spec(ref)
        check_size(self.workers, spec.workers)
        status = cluster.status(ref)
        if status.phase in (Phase.PENDING, Phase.STARTING):
            return Verdict(Scaling.WAITING, f"the training has not begun: {status.reason}")
        if not status.phase.final and cluster.set_size(ref, self.workers, self.request):
            return Verdict(Scaling.WAITING, f"asked for {self.workers} workers; {status.world_size} ranks train")
        return judge(status, self.workers, spec.workers.slots, cluster.size(ref), self.began, now)
