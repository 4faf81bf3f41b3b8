"""Claiming a name: what follows from one look at the run of that name. Pure.

Each step is decided on a fresh look and is conditional on what was seen, so that of two who claim at once one creates
and the other adopts.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from elastic_runtime.printable import printable
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import Phase, Status
from elastic_training.clusters.document import RunDocument
from elastic_training.identity.ownership import read_owner


@dataclass(frozen=True, slots=True)
class Times:
    """How patient the life of a run is in a place; in seconds."""

    claim: float = 240.0
    """How long a claim waits for a run that is ending, for one that is just being created, and for the place."""
    order: float = 60.0
    """How long of that the old run has to end in order, before it is removed as it is."""
    delete: float = 180.0
    """How long a delete waits until all is gone."""
    delete_order: float = 0.0
    """How long of that the run has to end in order."""
    creation: float = 30.0
    """A document that stays incomplete for so long while a claim looks on has no creator any more."""
    abandoned: timedelta = timedelta(minutes=2)
    """One that is incomplete and older than this has none, either."""
    pause: float = 0.5
    """Between two looks."""


@dataclass(frozen=True, slots=True)
class Observed:
    """How a run is doing, as its place knows."""

    status: Status
    launcher: bool
    """Whether a launcher runs, so that the run can end in order."""


class Action(StrEnum):
    """Next action of a claim."""

    CREATE = "create"
    ADOPT = "adopt"
    ASK_TO_END = "ask_to_end"
    REMOVE = "remove"
    WAIT = "wait"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a claim. CREATE, ADOPT and REFUSE end it; after the others there is another look."""

    action: Action
    note: str = ""
    """For people, about the run that is there; empty when there was none worth a word."""


def decide_claim(
    found: RunDocument | None,
    seen: Observed | None,
    spec: RunSpec,
    owner: str,
    *,
    fresh: bool,
    waited: float,
    now: datetime,
    times: Times,
) -> Step:
    """The next step.

    Args:
        found: under the name that is claimed.
        seen: how it is doing; only needed when it is complete and not being removed.
        spec: of the run to create.
        owner: who claims.
        fresh: adopt nothing but what this very claim has created.
        waited: seconds since this claim first saw that document as complete, or as incomplete, as it is now.
        now: the present time.
        times: of the place.
    """
    if found is None:
        return Step(Action.CREATE)
    mine = found.spec.uid == spec.uid  # Created by this claim, and the answer was lost.
    if not mine and (stranger := _stranger(found, owner)):
        return Step(Action.REFUSE, stranger)
    if found.going:
        return Step(Action.REMOVE)
    if not found.complete:
        if mine:
            return Step(Action.CREATE)
        dead = waited >= times.creation or now > found.created + times.abandoned
        return Step(Action.REMOVE if dead else Action.WAIT)
    assert seen is not None
    status = seen.status
    uncollected = status.phase is Phase.SUCCEEDED and not found.collected
    running = not status.phase.final and found.cancelled is None
    if (running or uncollected) and (mine or not fresh):
        return Step(Action.ADOPT, f"it is {status.phase}: {status.reason}")
    before = f"before it {status.phase}: {status.reason}"
    if status.phase.final or not seen.launcher or waited > times.order:
        return Step(Action.REMOVE, before)
    return Step(Action.WAIT if found.cancelled is not None else Action.ASK_TO_END, before)


def _stranger(found: RunDocument, owner: str) -> str:
    """Describe the task that owns a run, if it is another one than the claim's. Empty: it is the same, or unknown."""
    theirs, ours = read_owner(found.owner), read_owner(owner)
    if theirs is None or ours is None or theirs.task.is_that_of(ours.task):
        return ""
    index = f"[{theirs.map_index}]" if theirs.map_index >= 0 else ""
    return printable(f"task {theirs.task_id}{index} of DAG {theirs.dag_id}, DAG run {theirs.run_id}")
