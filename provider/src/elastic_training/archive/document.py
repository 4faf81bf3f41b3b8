"""Document that is kept of one try, and its name. Pure.

=====================================  ===============================================================
``DEPLOYMENT/TASK/tries/RUN.tN.json``  :class:`Document` of try N
``DEPLOYMENT/TASK/tries/RUN.tN.html``  its report, for people who look into the store
=====================================  ===============================================================

``TASK`` follows from dag and task id, ``RUN`` from these, run id and map index: readable words, and 128 bits of a hash,
which alone tell them apart. Ids can hold anything, so a document also says whose it is.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from elastic_runtime.documents import from_json, to_json, to_plain
from elastic_runtime.errors import InvalidDocument
from elastic_runtime.marks import VERSION
from elastic_runtime.run.status import MAX_USAGE, Series, Status
from elastic_training.identity.naming import TaskIdentity

LONGEST = 4 << 20
"""Bytes of a document that is read."""
LARGEST = 2 << 20
"""Bytes of one that is written; of a status that is larger, the curves are left out."""
MOST_TRIES = 1000
_WORD = 48
"""Characters of the readable part of a name."""
_LONGEST_TEXT = 400
"""Characters of each text beside the status."""
_TRY = re.compile(r"\.t(\d{1,9})\.json")
TRIES = "tries"
"""The folder of a task's files."""
NAME = re.compile(TRIES + r"/[A-Za-z0-9][A-Za-z0-9_-]{0,99}\.t\d{1,9}\.(?:json|html)")
"""Pattern of names that this module gives. All other files in the folder are foreign."""


@dataclass(frozen=True, slots=True)
class CostLine:
    """Line of a bill, as :func:`elastic_training.cost.bill.plain_bill` writes it."""

    capacity_type: str | None
    instance_type: str | None
    seconds: float
    idle_seconds: float
    price: str | None
    cost: str | None
    idle_cost: str | None
    on_demand_cost: str | None
    note: str


@dataclass(frozen=True, slots=True)
class Cost:
    """Bill of a run, as :func:`elastic_training.cost.bill.plain_bill` writes it."""

    currency: str
    book: str
    cost: str
    idle_cost: str
    on_demand_cost: str
    saving: str
    saving_percent: str | None
    unpriced_seconds: float
    lines: tuple[CostLine, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """The kept end of one try."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    try_number: int
    deployment: str
    place: str
    """Where it ran, by the cluster's own name."""
    written: datetime
    status: Status
    """Status when this was written: final, unless the run went on with another try or could not be waited for."""
    cost: Cost | None = None
    version: int = field(default=1, metadata=VERSION)
    folder: str | None = None
    """Folder of the run's checkpoints, under its task's prefix. None: it has none."""

    @property
    def task(self) -> TaskIdentity:
        """Return the task of the document."""
        return TaskIdentity(self.dag_id, self.run_id, self.task_id, self.map_index, self.deployment)


@dataclass(frozen=True, slots=True)
class Kept:
    """Kept record of one try."""

    name: str
    """Name of the run."""
    place: str
    status: Status
    cost: Mapping[str, Any] | None
    """Cost, as in the result document."""
    try_number: int
    tries: tuple[int, ...]
    """Tries of this task instance that have a record."""
    report_url: str
    """URL of the report in the store, for users who can open it."""
    written: datetime
    folder: str | None = None
    """Folder of the run's checkpoints, under its task's prefix. None: not known."""

    def report(self) -> str:
        """The report as HTML, made anew from the status: what lies in the store may have been altered."""
        from elastic_training.report import render_report

        return render_report(self.status, cost=self.cost)


def folder(task: TaskIdentity) -> str:
    """Return the archive's folder for all tries of this task, in any DAG run."""
    identity = json.dumps([task.dag_id, task.task_id])
    return f"{_fit(task.deployment) or '-'}/{_named((task.dag_id, task.task_id), identity)}"


def file_name(task: TaskIdentity, try_number: int, kind: str) -> str:
    """Return the name of a try's document (``json``) or report (``html``) in its task's folder."""
    return f"{_stem(task)}.t{try_number}.{kind}"


def report_uri(archive: str, task: TaskIdentity, try_number: int) -> str:
    """Return the URI of a try's report."""
    return f"{archive}/{folder(task)}/{file_name(task, try_number, 'html')}"


def _stem(task: TaskIdentity) -> str:
    identity = json.dumps([task.dag_id, task.run_id, task.task_id, task.map_index])
    words = (task.run_id, *([str(task.map_index)] if task.map_index >= 0 else []))
    return f"{TRIES}/{_named(words, identity)}"


def tries(task: TaskIdentity, names: Iterable[str]) -> tuple[int, ...]:
    """Return the newest tries of this task instance in ascending order, by the files in its task's folder."""
    start = _stem(task)
    matches = (_TRY.fullmatch(name.removeprefix(start)) for name in names if name.startswith(start))
    return tuple(sorted({int(found[1]) for found in matches if found})[-MOST_TRIES:])


def written(document: Document) -> bytes:
    """Return the document as JSON."""
    text = to_json(document).encode()
    if len(text) > LARGEST:
        text = to_json(replace(document, status=without_curves(document.status))).encode()
    return text


def without_curves(status: Status) -> Status:
    """Without the fields that can be large."""
    return replace(status, series={}, throughput=Series(), sample_throughput=Series(), hardware={})


def parsed(text: bytes, task: TaskIdentity, try_number: int) -> Document:
    """Raises InvalidDocument, also for one that is about another try."""
    found = from_json(Document, text)
    if found.task != task or found.try_number != try_number:
        raise InvalidDocument("it is about another task")
    cost = found.cost
    if cost is not None and (len(cost.lines) > MAX_USAGE or any(len(each) > _LONGEST_TEXT for each in _texts(cost))):
        raise InvalidDocument("its cost is longer than any can be")
    if len(found.place) > _LONGEST_TEXT or len(found.folder or "") > _LONGEST_TEXT:
        raise InvalidDocument("its place or its folder is longer than any can be")
    return found


def _texts(cost: Cost) -> Iterable[str]:
    for each in (to_plain(cost), *to_plain(cost)["lines"]):
        yield from (value for value in each.values() if isinstance(value, str))


def _named(words: Iterable[str], identity: str) -> str:
    readable = "-".join(filter(None, map(_fit, words)))[:_WORD].strip("-_")
    return f"{readable or 'x'}-{hashlib.sha256(identity.encode(errors='surrogatepass')).hexdigest()[:32]}"


def _fit(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-_")
