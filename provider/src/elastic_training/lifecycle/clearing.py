"""Effect of a clear of a task on its training run. Pure.

Airflow's dialog says that a cleared task runs again. Two facts tell a clear from a retry in every version of Airflow:

* A clear sets ``max_tries`` to the number of the last try plus ``retries``. So ``max_tries - retries`` is the number of
  the last try before the last clear, and 0 without any.
* From Airflow 3.4 on a clear empties what the task remembers, unless *Keep task state and resume* is chosen in the
  dialog.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from elastic_runtime.run.status import Phase, Status
from elastic_training.identity.ownership import Owner


class OnClear(StrEnum):
    """Choice of what a cleared task does."""

    START_OVER = "start_over"
    """Train from the beginning if its training had succeeded, or if Airflow has emptied what the task remembers; else
    go on from the newest checkpoint."""
    RESUME = "resume"
    """Go on from the newest checkpoint, whatever became of the training."""


class Start(StrEnum):
    """What a new try does with the run and the checkpoints of the tries before it."""

    ADOPT = "adopt"
    """Behave as a retry: adopt a run that trains, else resume from its checkpoints."""
    RESUME = "resume"
    """End a run that is alive, and go on from its checkpoints."""
    START_OVER = "start_over"
    """End a run that is alive, and begin at the beginning, in another folder."""


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """The newest run of a task, as far as it is known."""

    try_number: int
    """Number of the try that it worked for last."""
    succeeded: bool
    folder: str | None
    """Folder of its checkpoints, under the prefix. None: not known, or named like the run."""

    @classmethod
    def of(cls, owner: Owner, status: Status, name: str, checkpoint_folder: str | None) -> Self:
        """From what a place, or the archive, says of it.

        Args:
            owner: of the run.
            status: of the run.
            name: of the run.
            checkpoint_folder: last part of the URI of its checkpoints. Others may have written it, so only one that a
                run of this name can have is believed.
        """
        folder = checkpoint_folder if is_folder_of(name, checkpoint_folder or "") else None
        return cls(owner.try_number, status.phase is Phase.SUCCEEDED, folder)


@dataclass(frozen=True, slots=True)
class StartDecision:
    """Decision about the start of a try, with the reason for the log."""

    start: Start
    note: str = ""
    """For people; empty: as ever."""


def is_folder_of(name: str, folder: str) -> bool:
    """Whether a run of that name that started over can have a folder of checkpoints that is called so."""
    return re.fullmatch(rf"{re.escape(name)}-[0-9a-f]{{8}}", folder) is not None


def last_try_before_clear(max_tries: int, retries: int) -> int:
    """Number of the last try before the task was cleared; 0: it never was."""
    return max(0, max_tries - retries)


def decide_start(
    earlier: EarlierRun | None, *, try_number: int, cleared_after: int, emptied: bool, on_clear: OnClear
) -> StartDecision:
    """How a try of a training task starts.

    Args:
        earlier: the newest run of the task; None: none is known.
        try_number: of the try.
        cleared_after: see :func:`last_try_before_clear`.
        emptied: Airflow has a store of what the task remembers, and no try since the clear has noted its run there.
        on_clear: the task's setting.
    """
    if not 0 < cleared_after < try_number:
        return StartDecision(Start.ADOPT)
    before = earlier is not None and earlier.try_number <= cleared_after
    if on_clear is OnClear.START_OVER:
        remedy = 'on_clear="resume" goes on from the newest checkpoint instead'
        if before and earlier is not None and earlier.succeeded:
            note = "The task was cleared after its training had succeeded: it trains again from the beginning"
            return StartDecision(Start.START_OVER, f"{note}. {remedy}")
        if emptied:
            note = "The task was cleared, and Airflow has discarded its task state: it trains from the beginning"
            dialog = "'Keep task state and resume' in Airflow's dialog"
            return StartDecision(Start.START_OVER, f"{note}. {dialog}, or {remedy}")
    if before or emptied:
        return StartDecision(Start.RESUME, "The task was cleared: it goes on from the newest checkpoint")
    if earlier is None:
        unknown = "The task was cleared, and nothing is known of its runs before"
        return StartDecision(Start.ADOPT, f"{unknown}: it goes on from the newest checkpoint, if there is one")
    return StartDecision(Start.ADOPT)
