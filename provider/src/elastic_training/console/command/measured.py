"""What a task's own runs have measured, from what is kept of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from elastic_runtime.errors import ElasticError, InvalidSettings
from elastic_runtime.rehearsal.speed import measured
from elastic_runtime.run.status import Phase
from elastic_training.archive.document import Document
from elastic_training.archive.reading import newest_documents
from elastic_training.archive.where import Address, configured, of_rendered, of_this_machine
from elastic_training.console.command.output import print_error
from elastic_training.console.command.task_settings import TaskSettings
from elastic_training.identity.deployment import deployment
from elastic_training.identity.naming import TaskIdentity

MOST_RUNS = 20
"""Runs that are looked at, the newest."""


@dataclass(slots=True)
class Measured:
    """By the newest runs of a task."""

    rates: dict[int, float] = field(default_factory=dict)
    """Steps a second by number of workers, each as the newest run with so many has it."""
    rated: str = ""
    """Name of the newest run that has any."""
    steps: int | None = None
    """Global steps of the newest run that succeeded."""
    succeeded: str = ""
    """Its name."""


def measured_by(found: TaskSettings) -> Measured:
    """Look through what is kept of a task's runs. What cannot be read is reported; blocks."""
    result = Measured()
    for document in _documents(found):
        status = document.status
        rates = measured(status, found.slots) if found.slots else {}
        if rates and not result.rated:
            result.rated = status.run
        result.rates = {**rates, **result.rates}
        if result.steps is None and status.phase is Phase.SUCCEEDED and status.step:
            result.steps, result.succeeded = status.step, status.run
    return result


def _documents(found: TaskSettings) -> Iterator[Document]:
    task = TaskIdentity(found.dag_id, "", found.task_id, deployment=deployment())
    for address in dict.fromkeys(_addresses(found)):
        try:
            yield from newest_documents(address, task, MOST_RUNS)
        except ElasticError as error:
            print_error(f"what the task has measured cannot be read: {error}")


def _addresses(found: TaskSettings) -> Iterator[Address]:
    with suppress(InvalidSettings):
        if given := configured():
            yield given
    with suppress(InvalidSettings):
        if beside := of_rendered(found.stored):
            yield beside
    with suppress(InvalidSettings):
        yield of_this_machine()
