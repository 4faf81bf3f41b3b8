"""Finds what is kept of a try, by Airflow's ids alone: for the API server, and for people at a terminal; blocks.

An archive that is not configured lies where the task's checkpoints do; so the task's rendered fields are asked for,
which stay when a new try clears its XComs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from elastic_runtime.checkpoint.store import CheckpointStore
from elastic_runtime.documents import from_json, to_plain
from elastic_runtime.errors import ElasticError, InvalidDocument, InvalidSettings
from elastic_runtime.printable import LONG, printable
from elastic_training.airflow.rendered import rendered_fields
from elastic_training.archive.document import (
    LONGEST,
    NAME,
    TRIES,
    Document,
    Kept,
    file_name,
    folder,
    parsed,
    report_uri,
    tries,
)
from elastic_training.archive.outages import StillSilent
from elastic_training.archive.where import Address, configured, credentials, of_rendered, of_this_machine, opened
from elastic_training.identity.deployment import deployment
from elastic_training.identity.naming import TaskIdentity
from elastic_training.redaction.values import masked

T = TypeVar("T")
_log = logging.getLogger(__name__)


def at_once(_name: str, function: Callable[[], T]) -> T:
    """Call the function in this thread."""
    return function()


def read(dag_id: str, run_id: str, task_id: str, map_index: int = -1, try_number: int | None = None) -> Kept | None:
    """Return the record of a try, as :func:`look_up`. None: there is none, or it cannot be read, which is logged."""
    try:
        task = TaskIdentity(dag_id, run_id, task_id, map_index, deployment())
    except InvalidSettings as error:
        _log.warning("What is kept of runs cannot be found: %s", error)
        return None
    return look_up(task, try_number)[0]


def look_up(
    task: TaskIdentity, try_number: int | None = None, ask: Callable[[str, Callable[[], Any]], Any] = at_once
) -> tuple[Kept | None, str | None]:
    """Return the record of a try, or the reason why it may exist but not be readable, which is logged.

    For where Airflow's database may be asked: its API server, its web server, its command line. Whoever calls it has
    made sure that the one who asks may see the task.

    Args:
        task: the task instance.
        try_number: None: the newest of which something is kept.
        ask: calls what asks Airflow's connections or a store, which it is given a name of.
    """
    name, trouble = printable(task.task_id, 80), None
    whole = printable(f"{task.dag_id}.{task.task_id} [{task.map_index}] of {task.run_id}", LONG)
    try:
        found = ask(f"Airflow, where {whole} trained,", partial(_addresses, task))
    except Exception as error:  # noqa: BLE001  # of a connection, which other distributions read
        return None, str(error) if isinstance(error, ElasticError) else type(error).__name__
    for address in found:
        try:
            if kept := ask(f"the store {address.server}", partial(_read_at, address, task, try_number)):
                return kept, None
        except StillSilent as error:
            trouble = printable(masked(str(error)))
        except Exception as error:  # noqa: BLE001  # a store's, of a distribution that brings it, a network's
            # The words of a store may quote a URI, and who knows what it has.
            trouble = printable(masked(str(error)))
            _log.warning("What is kept of %s cannot be read: %s", name, trouble)
    return None, trouble


def _addresses(task: TaskIdentity) -> list[Address]:
    return list(addresses(task))


def addresses(task: TaskIdentity) -> Iterator[Address]:
    """Where something may be kept of a task instance, each once, the likeliest first."""
    seen: set[Address] = set()
    for address in _found(task):
        if address not in seen:
            seen.add(address)
            yield address


def _found(task: TaskIdentity) -> Iterator[Address]:
    with suppress(InvalidSettings):
        if given := configured():
            yield given
    for rendered in _rendered(task):
        with suppress(InvalidSettings):
            if address := of_rendered(rendered):
                yield address
    with suppress(InvalidSettings):
        yield of_this_machine()


def _rendered(task: TaskIdentity) -> list[Mapping[str, Any]]:
    try:
        return rendered_fields(task.dag_id, task.run_id, task.task_id, task.map_index)
    except Exception as error:  # noqa: BLE001  # a database's, Airflow's: the archive may be known all the same
        _log.warning("Cannot read from Airflow where %s trained: %s", printable(task.task_id, 80), type(error).__name__)
        return []


def read_newest(address: Address, task: TaskIdentity, before: int | None = None) -> Kept | None:
    """Return the record of the newest try of a task at one address, in a task's worker.

    Args:
        address: of the archive.
        task: the task instance.
        before: only of tries before that one; None: of all.

    Raises:
        ElasticError: the store does not answer, or what it has cannot be believed.
        InvalidSettings: Airflow has no such connection.
    """
    return _read_at(address, task, None, before)


def _read_at(address: Address, task: TaskIdentity, try_number: int | None, before: int | None = None) -> Kept | None:
    with opened(address.uri, task, credentials(address)) as store:
        known = tuple(each for each in tries(task, store.files(TRIES)) if before is None or each < before)
        wanted = try_number if try_number is not None else max(known, default=None)
        if wanted is None or wanted not in known:
            return None
        found = read_document(store, task, wanted)
    return Kept(
        name=found.status.run,
        place=found.place,
        status=found.status,
        cost=None if found.cost is None else to_plain(found.cost),
        try_number=wanted,
        tries=known,
        report_url=report_uri(address.uri, task, wanted),
        written=found.written,
        folder=found.folder,
    )


def newest_documents(address: Address, task: TaskIdentity, most: int) -> Iterator[Document]:
    """Yield the newest documents at one address of a task in any of its DAG runs, at most so many; blocks.

    Args:
        address: of the archive.
        task: names DAG, task and deployment; its run id and map index are of no effect.
        most: documents that are read.

    Raises:
        ElasticError: the store does not answer. A document that cannot be believed is passed over, and logged.
    """
    with opened(address.uri, task, credentials(address)) as store:
        ages = {name: age for name, age in store.ages(TRIES).items() if name.endswith(".json") and NAME.fullmatch(name)}
        for name in sorted(ages, key=lambda each: (ages[each], each))[:most]:
            try:
                with store.open_beside(name, LONGEST) as stream:
                    text = stream.read(LONGEST)
                found = from_json(Document, text)
                if folder(found.task) != folder(task) or file_name(found.task, found.try_number, "json") != name:
                    raise InvalidDocument("it is about another task")
                yield parsed(text, found.task, found.try_number)
            except InvalidDocument as error:
                _log.warning("What is kept in %s is passed over: %s", printable(name), printable(masked(str(error))))


def read_document(store: CheckpointStore, task: TaskIdentity, try_number: int) -> Document:
    """Read the document of a try from its task's folder.

    Raises:
        InvalidDocument: there is none, or none that can be believed.
        StoreUnavailable: the store does not answer.
    """
    with store.open_beside(file_name(task, try_number, "json"), LONGEST) as stream:
        return parsed(stream.read(LONGEST), task, try_number)
