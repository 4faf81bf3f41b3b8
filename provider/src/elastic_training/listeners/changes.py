"""Changes of a run between two reads of its status. Pure.

A status has its own history (worlds, events, the newest checkpoint). So a process that knows what was reported can
report the rest, however many statuses it missed. :class:`ReportedState` records that. It is stored with the run, so a
triggerer that takes over continues. Changes that were reported just before a process was killed are reported again.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from elastic_runtime.documents import from_json, to_json
from elastic_runtime.errors import FailureKind, InvalidDocument
from elastic_runtime.run.status import Checkpoint, EventKind, Status

MAX_TOLD_AT_ONCE = 100
"""Changes of one look, the newest: of worlds and notices, after a long time in which nobody was told."""


class ChangeKind(StrEnum):
    """Kinds of changes that callbacks and metrics are called with."""

    CREATED = "created"
    """A try of the task has created the run."""
    ADOPTED = "adopted"
    """A try of the task goes on with a run that was there."""
    FIRST_STEP = "first_step"
    """The first global step was reported."""
    RESIZED = "resized"
    """A new world trains, with another number of ranks than the one before."""
    REFORMED = "reformed"
    """A new world trains, with as many ranks as the one before: a worker or a rank was replaced."""
    NOTICED = "noticed"
    """A worker will be taken."""
    CHECKPOINTED = "checkpointed"
    """A durable checkpoint is complete; of several since the last look, the newest."""
    FINISHED = "finished"
    """The run is over."""


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that happened. Fields that its kind does not mention are None."""

    kind: ChangeKind
    run: str
    """Its name."""
    uid: str
    """Uid of the run's incarnation."""
    time: datetime
    """When; with ``created`` and ``adopted``, by Airflow's clock, else by the launcher's."""
    step: int | None = None
    """Newest global step by then; of a checkpoint, its own."""
    world_size: int | None = None
    """Ranks; with ``resized``, ``reformed``, ``first_step``."""
    before: int | None = None
    """Ranks of the world before; with ``resized`` and ``reformed``."""
    seconds: float | None = None
    """For which no world trained before this one; with ``resized`` and ``reformed``, 0 when the status tells of no
    such pause."""
    worker: str | None = None
    """Name; with ``noticed``."""
    checkpoint: Checkpoint | None = None
    """With ``checkpointed``, and with ``finished`` the newest."""
    failure: FailureKind | None = None
    """With ``finished``: None, if it succeeded."""
    message: str = ""
    """For people."""


@dataclass(frozen=True, slots=True)
class ReportedState:
    """Which changes of a run were reported."""

    stepped: bool = False
    generation: int = 0
    """Generation of the newest world."""
    size: int = 0
    """Ranks of it."""
    noticed: datetime | None = None
    """Time of the newest notice."""
    checkpoint: str | None = None
    """URI of the newest."""
    finished: bool = False

    @classmethod
    def of(cls, status: Status) -> ReportedState:
        """Return the state after all changes in this status were reported."""
        worlds = [world for world in status.history if world.size]
        return cls(
            stepped=status.step is not None,
            generation=status.generation,
            size=worlds[-1].size if worlds else 0,
            noticed=max((event.time for event in status.events if event.kind is EventKind.NOTICE), default=None),
            checkpoint=status.checkpoint.uri if status.checkpoint else None,
            finished=status.phase.final,
        )

    def text(self) -> str:
        """Return the text that is kept with the run."""
        return to_json(self)


def read_reported(text: str) -> ReportedState:
    """Parse :meth:`ReportedState.text`. Invalid text counts as nothing reported."""
    try:
        return from_json(ReportedState, text) if text else ReportedState()
    except InvalidDocument:
        return ReportedState()


def changes(before: Status | ReportedState | None, after: Status) -> tuple[Change, ...]:
    """Return the changes since then, in order, without ``created`` and ``adopted``, which no status shows.

    Args:
        before: the last status whose changes were told, or its place; None: nothing was told yet.
        after: of the same incarnation, now.
    """
    told = ReportedState.of(before) if isinstance(before, Status) else before or ReportedState()
    found = [*_worlds(told, after), *_notices(told, after)]
    found.sort(key=lambda each: each.time)
    del found[:-MAX_TOLD_AT_ONCE]
    if after.step is not None and not told.stepped:
        found.insert(0, _change(ChangeKind.FIRST_STEP, after, after.updated, world_size=after.world_size))
    written = after.checkpoint
    if written is not None and written.uri != told.checkpoint:
        message = f"checkpoint of step {written.step} at {written.uri}"
        at = (ChangeKind.CHECKPOINTED, after, written.time)
        found.append(_change(*at, step=written.step, checkpoint=written, message=message))
    if after.phase.final and not told.finished:
        ended = after.finished or after.updated
        about = {"checkpoint": written, "failure": after.failure, "message": after.reason}
        found.append(_change(ChangeKind.FINISHED, after, ended, **about))
    return tuple(found)


def _worlds(told: ReportedState, after: Status) -> list[Change]:
    """Those that came behind another one."""
    found = []
    size, ended = told.size, None
    for world in after.history:
        if not world.size:
            ended = world.time
            continue
        if world.generation > told.generation and size:
            seconds = (world.time - ended).total_seconds() if ended else 0.0
            kind = ChangeKind.REFORMED if world.size == size else ChangeKind.RESIZED
            about = {"world_size": world.size, "before": size, "seconds": max(0.0, seconds)}
            words = f"{world.size} ranks train in generation {world.generation}, {size} before"
            found.append(_change(kind, after, world.time, step=world.step, message=words, **about))
        if world.generation > told.generation:
            size = world.size
        ended = None
    return found


def _notices(told: ReportedState, after: Status) -> list[Change]:
    new = (
        event
        for event in after.events
        if event.kind is EventKind.NOTICE and (told.noticed is None or event.time > told.noticed)
    )
    return [
        _change(ChangeKind.NOTICED, after, event.time, step=event.step, worker=event.worker, message=event.message)
        for event in new
    ]


def _change(kind: ChangeKind, status: Status, time: datetime, **about: object) -> Change:
    return Change(kind, status.run, status.uid, time, **{"step": status.step} | about)  # type: ignore[arg-type]  # by name
