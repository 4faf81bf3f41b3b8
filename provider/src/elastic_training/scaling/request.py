"""A wish for another size, on its way to being true."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from elastic_runtime.documents import time_to_text
from elastic_runtime.run.status import Phase, Status
from elastic_training.clusters.cluster import Cluster
from elastic_training.clusters.document import SizeRequest
from elastic_training.clusters.wish import SizeWish
from elastic_training.lifecycle.training_task import TrainingTask
from elastic_training.scaling.after import ScaleAfter


class ScaleState(StrEnum):
    """How far a wish for another size has come."""

    WAITING = "waiting"
    """Not there yet."""
    REACHED = "reached"
    """The world has the wanted size; or it was asked for, where that is all that is waited for."""
    OVERRULED = "overruled"
    """Somebody has asked for yet another size since."""
    ENDED = "ended"
    """The training ended before, or will never begin."""
    INVALID = "invalid"
    """It can never be: out of bounds, no such training, a missing right."""
    TIMEOUT = "timeout"
    """The time is over."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A state, and why."""

    scaling: ScaleState
    reason: str
    """For people."""
    result: dict[str, Any] | None = None
    """What the task returns, once it is reached; plain JSON."""


def judge(status: Status, asked: SizeRequest, slots: int, present: int, release: tuple[str, ...] = ()) -> Verdict:
    """How far it is, of a run that has not ended.

    Args:
        status: of the run.
        asked: what the wish came to.
        slots: ranks per worker.
        present: workers that the run is asked for now.
        release: workers that have to be gone, too.
    """
    wanted = asked.workers
    if not present:
        return Verdict(ScaleState.WAITING, "the run is ending")
    if present != wanted:
        return Verdict(ScaleState.OVERRULED, f"{wanted} workers were asked for, and since then {present}")
    ranks = wanted * slots
    there = status.phase is Phase.RUNNING and status.target_size == wanted and status.world_size == ranks
    staying = [each.name for each in status.workers if each.name in release and not each.state.gone]
    text = f"{status.world_size} of {ranks} ranks train, phase {status.phase}"
    if staying:
        return Verdict(ScaleState.WAITING, f"{text}; {', '.join(staying)} are still there")
    return Verdict(ScaleState.REACHED, text, result(status, asked)) if there else Verdict(ScaleState.WAITING, text)


def had(status: Status, asked: SizeRequest, slots: int) -> bool:
    """Whether a run that is over has trained in the size that was asked for, and nobody was there to see it."""
    if not asked.done or asked.asked is None or not asked.workers:
        return False
    since = asked.asked
    before = [world.size for world in status.history if world.time < since][-1:]
    return asked.workers * slots in (*before, *(world.size for world in status.history if world.time >= since))


def result(status: Status, asked: SizeRequest, ranks: int | None = None) -> dict[str, Any]:
    """What a task returns.

    Args:
        status: of the run.
        asked: what the wish came to.
        ranks: of the world that was reached; None: of the present one.

    Returns:
        ``workers``, ``world_size`` (ranks), ``run``, ``asked_at`` (RFC 3339), and ``seconds`` from then to the first
        world of that size, by the clocks of Airflow's machine and the launcher's; 0 if it was there before.
    """
    seconds, ranks = None, status.world_size if ranks is None else ranks
    if asked.asked is not None:
        begun = [each.time for each in status.history if each.size == ranks and each.time >= asked.asked]
        seconds = round((begun[0] - asked.asked).total_seconds(), 3) if begun else 0.0
    return {
        "workers": asked.workers,
        "world_size": ranks,
        "run": status.run,
        "asked_at": time_to_text(asked.asked) if asked.asked else None,
        "seconds": seconds,
    }


@dataclass(frozen=True, slots=True)
class ScaleRequest:
    """What a task wants of a training."""

    training: TrainingTask
    wish: SizeWish
    request: str
    """Names the wish: asked once per incarnation of the run."""
    began: datetime
    """When this try of the task began."""
    after: ScaleAfter = field(default_factory=ScaleAfter)
    wait: bool = True
    """Until the world has the size; else only until it was asked for."""
    by: str = ""
    """Which task it is, for people."""

    async def pursue(self, cluster: Cluster) -> Verdict:
        """One look; asks for the size when that has not been done, and the training has begun.

        Not before: a wish that came while the first workers start would make the first world, instead of changing it.

        Raises:
            InvalidSettings: the size is out of the training's bounds, or a worker to give up is not there.
            RunNotFound: there is no run yet.
        """
        ref = await self.training.find(cluster)
        spec, status = await cluster.spec(ref), await cluster.status(ref)
        if status.phase.final:
            asked_before, slots = await cluster.request(ref, self.request), spec.workers.slots
            if asked_before and had(status, asked_before, slots):
                ranks = asked_before.workers * slots
                text = f"the training run {status.run} has {status.phase}, and had {ranks} ranks before"
                return Verdict(ScaleState.REACHED, text, result(status, asked_before, ranks))
            wanted = "it released them" if self.wish.release else f"it had the size {self.wish.size}"
            return Verdict(
                ScaleState.ENDED, f"the training run {status.run} has {status.phase} ({status.reason}) before {wanted}"
            )
        if status.phase in (Phase.PENDING, Phase.STARTING):
            self.wish.target(spec.workers.start, spec.workers)  # A bad one is told now.
            return Verdict(ScaleState.WAITING, f"the training has not begun: {status.reason}")
        if missing := self.after.missing(status):
            return Verdict(ScaleState.WAITING, missing)
        asked = await cluster.ask(ref, self.wish, self.request, self.by)
        if not self.wait:
            return Verdict(ScaleState.REACHED, f"asked for {asked.workers} workers", told(status, asked))
        if not asked.done:
            words = f"asked for {asked.workers} workers; {status.world_size} ranks train"
            return Verdict(ScaleState.WAITING, words)
        return judge(status, asked, spec.workers.slots, await cluster.size(ref), self.wish.release)


def told(status: Status, asked: SizeRequest) -> dict[str, Any]:
    """The result of a task that does not wait for the world."""
    return result(status, asked) | {"world_size": None, "seconds": None}
