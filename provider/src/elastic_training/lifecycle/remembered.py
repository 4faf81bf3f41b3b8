"""Which run a try goes on with when the run that its task remembers is not the one of its name. Pure.

Since Airflow 3.3 a task remembers its run between tries (:mod:`elastic_training.lifecycle.task_memory`). Its name, from
which all tries find it anyway, changes with the deployment's name. What is remembered can be edited through Airflow's
API, so nothing follows from it but what the run, or the name, confirms.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Self

from elastic_training.identity.naming import MAX_LENGTH, TaskIdentity
from elastic_training.identity.ownership import Owner

_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class RememberedRun:
    """Run as a task remembers it."""

    name: str
    uid: str
    cluster: str
    """Cluster, as the user named it."""
    deployment: str = ""
    """Deployment of Airflow when the run was claimed."""

    @property
    def plausible(self) -> bool:
        """Whether a run can have that name: it goes into paths and names of objects."""
        return len(self.name) <= MAX_LENGTH and _NAME.fullmatch(self.name) is not None


@dataclass(frozen=True, slots=True)
class Found:
    """A run, as a place knows it."""

    owner: Owner | None
    """None: not known."""
    living: bool

    def belongs_to(self, task: TaskIdentity) -> bool:
        """Whether it is a run of this task, in whichever deployment of Airflow."""
        return self.owner is not None and self.owner.task.is_that_of(task)


@dataclass(frozen=True, slots=True)
class Choice:
    """Under which name a try claims its run."""

    name: str
    warning: str = ""
    """For people, where the two differ."""

    @classmethod
    def of(
        cls, task: TaskIdentity, present: str, remembered: RememberedRun, old: Found | None, new: Found | None
    ) -> Self:
        """When the names differ.

        A run that is alive is gone on with, the remembered one before that of the present name: two of one task must
        not train. Of runs that are over, the remembered name is kept, because the checkpoints are under it; without a
        run that proves whose name that is, only if it follows from this task and the deployment that is remembered.

        Args:
            task: whose try it is.
            present: the name that follows from it.
            remembered: a plausible name, not the present one.
            old: the run of the remembered name; None: there is none where this try trains.
            new: the run of the present name; None: there is none.
        """
        about = f"the task remembers the run {remembered.name}, and its name would be {present} now"
        if old is not None and not old.belongs_to(task):
            return cls(present, f"{about}: that run is another task's, and is left alone")
        if old is not None and old.living:
            return cls(remembered.name, f"{about}: the one that is remembered is alive")
        if new is not None and new.living:
            return cls(present, f"{about}: the one of the present name is alive")
        derived = replace(task, deployment=remembered.deployment)
        if old is not None or remembered.name == derived.name:
            return cls(remembered.name, f"{about}: the old name is kept, for its checkpoints")
        return cls(present, f"{about}: there is no run of the old name")
