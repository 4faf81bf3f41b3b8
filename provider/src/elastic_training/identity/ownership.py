"""Who owns a run: one try of one task instance. The text is opaque to clusters, which only compare it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from elastic_runtime.documents import from_json, to_json
from elastic_runtime.errors import InvalidDocument
from elastic_training.identity.naming import TaskIdentity

_LONGEST_ID = 1000
"""Characters. Airflow's database has 250."""
_MOST = 2**31 - 1
"""The largest number in a column of Airflow's database."""


@dataclass(frozen=True, slots=True)
class Owner:
    """One try of a task instance."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    try_number: int
    nonce: str
    """Random, new with each ``execute``: two workers that run the same try by mistake differ."""
    deployment: str = ""
    """Deployment of Airflow. Empty: not known."""

    @classmethod
    def of(cls, task_instance: Any, deployment: str = "") -> Owner:
        """A new owner for the try that runs now."""
        return cls(
            dag_id=task_instance.dag_id,
            run_id=task_instance.run_id,
            task_id=task_instance.task_id,
            map_index=_map_index(task_instance),
            try_number=task_instance.try_number,
            nonce=uuid4().hex,
            deployment=deployment,
        )

    @property
    def task(self) -> TaskIdentity:
        """Task instance of which this owner is one try."""
        return TaskIdentity(self.dag_id, self.run_id, self.task_id, self.map_index, self.deployment)

    def text(self) -> str:
        """Return the owner as a cluster stores it."""
        return to_json(self)

    def is_try_of(self, task_instance: Any) -> bool:
        """Whether this owner is the given try, whichever its nonce."""
        return (self.dag_id, self.run_id, self.task_id, self.map_index, self.try_number) == (
            task_instance.dag_id,
            task_instance.run_id,
            task_instance.task_id,
            _map_index(task_instance),
            task_instance.try_number,
        )


def read_owner(text: str) -> Owner | None:
    """The owner, or None when the text was not written by this module: no database would take its ids."""
    try:
        owner = from_json(Owner, text)
    except InvalidDocument:
        return None
    texts = (owner.dag_id, owner.run_id, owner.task_id, owner.nonce, owner.deployment)
    fit = all(len(each) <= _LONGEST_ID and "\0" not in each for each in texts)
    return owner if fit and -1 <= owner.map_index <= _MOST and 0 <= owner.try_number <= _MOST else None


def _map_index(task_instance: Any) -> int:
    index = task_instance.map_index
    return -1 if index is None else int(index)
