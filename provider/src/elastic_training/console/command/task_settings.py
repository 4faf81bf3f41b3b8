"""Settings of a task in a DAG file, as far as they are known before it runs, for its rehearsal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elastic_runtime.errors import ElasticError, InvalidSettings
from elastic_runtime.run.spec import RecoveryMode
from elastic_training.airflow.dag_files import task_of_file
from elastic_training.clusters.location import LOCAL
from elastic_training.clusters.registry import location
from elastic_training.operators.elastic_training import ElasticTrainingOperator
from elastic_training.settings.recovery import Checkpoints, Recovery
from elastic_training.settings.templating import Settings, is_template
from elastic_training.settings.values import member_of, seconds_of, settings_of, whole_number
from elastic_training.settings.workers import Workers

_MAPPED = object()
"""Stands for what ``expand`` brings."""


@dataclass(slots=True)
class TaskSettings:
    """What a task says. Keys are the command's options."""

    dag_id: str
    task_id: str
    known: dict[str, Any] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    """Why a setting cannot be known."""
    slots: int | None = None
    """Ranks of each worker. None: not known."""
    machine: str | None = None
    restarts: bool = False
    """Whether each change of the workers starts the script again."""
    left_out: list[str] = field(default_factory=list)
    """What it says beside, of which a rehearsal knows nothing."""
    price_book: str | None = None
    stored: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the operator that say where its runs are kept, as far as they are known."""

    def note(self, option: str, name: str, value: object, parse: Any) -> None:
        """Parse a value that is known, or say why it is not. Raises InvalidSettings."""
        if value is _MAPPED:
            self.unknown[option] = f"{name} is mapped"
        elif is_template(value):
            self.unknown[option] = f"{name} is a template, or the output of another task"
        else:
            self.known[option] = parse(value)


def settings_in(path: Path, task_id: str, dag_id: str | None) -> TaskSettings:
    """Read the settings of a training task. Runs the DAG file.

    Raises:
        InvalidSettings: the file has no such training, or its settings cannot be.
    """
    task = task_of_file(path, task_id, dag_id)
    kind = getattr(task, "operator_class", type(task))
    if not (isinstance(kind, type) and issubclass(kind, ElasticTrainingOperator)):
        raise InvalidSettings("--task", f"{task_id} is not a training", "Write the id of an ElasticTorchOperator, …")
    found = TaskSettings(task.dag_id, task_id)
    _workers(found, _given(task, "workers"))
    _recovery(found, _given(task, "recovery"))
    _store(found, task)
    restart = _given(task, "restart")
    found.restarts = restart is not None and restart is not _MAPPED
    if restart is _MAPPED:
        found.left_out.append("restart, which is mapped; ranks go from world to world in place")
    elif restart is not None:
        found.left_out.append("the checkpoint at the script's signal; a restart goes back to the newest before it")
    for name in ("size_plan", "deadline"):
        if _given(task, name) is not None:
            found.left_out.append(f"{name}; the workers of start are asked for all the time")
    book = _given(task, "price_book")
    found.price_book = book if isinstance(book, str) and not is_template(book) else None
    return found


def _given(task: Any, name: str) -> Any:
    """Of an operator, or of one that is mapped."""
    partial = getattr(task, "partial_kwargs", None)
    if partial is None:
        return getattr(task, name, None)
    if name in partial:
        return partial[name]
    expanded = getattr(getattr(task, "expand_input", None), "value", None)
    return _MAPPED if not isinstance(expanded, Mapping) or name in expanded else None


def _fields(kind: type[Settings], name: str, given: object) -> Iterator[tuple[str, Any]]:
    """Name and value of each field; all are as unknown as the whole, where that is."""
    names = kind.__dataclass_fields__
    whole = given is _MAPPED or is_template(given)
    made = None if whole else kind() if given is None else settings_of(kind, name, given, f"{kind.__name__}(…)")
    for each in names:
        yield each, given if made is None else getattr(made, each)


def _workers(found: TaskSettings, given: object) -> None:
    of = dict(_fields(Workers, "workers", given))
    # As Workers.spec: what is not given is what comes before.
    start = of["min"] if of["start"] is None else of["start"]
    most = start if of["max"] is None else of["max"]
    for option, value in (("min", of["min"]), ("start", start), ("max", most)):
        found.note(option, f"workers.{option}", value, lambda each: whole_number("workers", each, least=1))
    if isinstance(of["machine"], str) and not is_template(of["machine"]):
        found.machine = of["machine"]
    if not any(of[each] is _MAPPED or is_template(of[each]) for each in ("slots", "gpus", "machine")):
        found.slots = Workers(slots=of["slots"], gpus=of["gpus"], machine=of["machine"]).spec().slots


def _recovery(found: TaskSettings, given: object) -> None:
    of = dict(_fields(Recovery, "recovery", given))
    found.note("mode", "recovery.mode", of["mode"], lambda each: member_of("recovery.mode", each, RecoveryMode).value)
    for option in ("max_wait", "start_timeout"):
        name = f"recovery.{option}"
        found.note(option, name, of[option], lambda each, name=name: seconds_of(name, each))
    found.note("notices", "recovery.notices", of["notices"], str)
    found.note("reset_limit", "recovery.reset_limit", of["reset_limit"], _limit)


def _limit(value: object) -> int | None:
    return None if value is None else whole_number("recovery.reset_limit", value, least=0)


def _store(found: TaskSettings, task: Any) -> None:
    """Whether checkpoints are kept, and how often."""
    uri, cluster = _given(task, "checkpoint_uri"), _given(task, "cluster") or LOCAL
    conn_id = _given(task, "checkpoint_conn_id")
    stored = {"checkpoint_uri": uri, "checkpoint_conn_id": conn_id, "cluster": cluster}
    found.stored = {name: each for name, each in stored.items() if isinstance(each, str) and not is_template(each)}
    if uri is None and cluster != LOCAL:
        uri = _of_connection(cluster)
    if uri is None and cluster != LOCAL:
        found.unknown["checkpoint_every"] = "the connection that may say where checkpoints go cannot be read"
    elif not uri:
        found.known["checkpoint_every"] = 0.0
    else:
        every = dict(_fields(Checkpoints, "checkpoints", _given(task, "checkpoints")))["every"]
        found.note("checkpoint_every", "checkpoints.every", every, lambda each: seconds_of("checkpoints.every", each))


def _of_connection(cluster: Any) -> str | None:
    """The prefix of a connection; empty: it has none. None: nobody knows."""
    if not isinstance(cluster, str) or is_template(cluster):
        return None
    with suppress(ElasticError, Exception):  # Of Airflow's database, or where else connections are.
        said = location(cluster)
        return "" if said is None else said.checkpoint_uri or ""
    return None
