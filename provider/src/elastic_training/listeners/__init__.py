"""Who is told what happens in a run while it is followed: the user's callbacks, Airflow's metrics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from elastic_runtime.clock import utc_now
from elastic_training.clusters.types import Claim, ClaimOutcome
from elastic_training.listeners.audience import Audience, Listener, Log
from elastic_training.listeners.callbacks import CallbackListener, TrainingCallback
from elastic_training.listeners.changes import Change, ChangeKind
from elastic_training.listeners.metrics import MetricsListener, wanted


def listeners_of(owner: str, callbacks: Iterable[str | type[TrainingCallback]]) -> tuple[Listener, ...]:
    """All that this try's run has.

    Args:
        owner: whose try it is.
        callbacks: classes of the user's, or their dotted paths.
    """
    own = tuple(CallbackListener(each, owner) for each in callbacks)
    return (*own, MetricsListener(owner)) if wanted() else own


async def report_claim(claim: Claim, listeners: Sequence[Listener], log: Log) -> None:
    """A task has created or adopted a run, which no status tells. Takes bounded time, and raises nothing of theirs."""
    kind = ChangeKind.ADOPTED if claim.outcome is ClaimOutcome.ADOPTED else ChangeKind.CREATED
    change = Change(kind, claim.ref.name, claim.ref.uid, utc_now(), message=claim.note)
    await Audience(listeners, log).tell(None, [change])
