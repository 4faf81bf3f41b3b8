"""Reads a DAG file as Airflow's DAG processor does: at a terminal, where the caller may run its code anyway."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from contextlib import redirect_stdout
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.printable import LONG, printable

_FEW = 5


def task_of_file(path: Path, task_id: str, dag_id: str | None = None) -> Any:
    """Run a DAG file, and return its task of that id, mapped or not.

    Args:
        path: of the file.
        task_id: with those of its groups.
        dag_id: of its DAG; None: the only one that has such a task.

    Raises:
        InvalidSettings: there is no file, no DAG or no such task; the file raises something; several DAGs have it.
    """
    dags = _dags(path)
    asked = {name: dag for name, dag in dags.items() if dag_id in (None, name)}
    tasks = {name: dag.get_task(task_id) for name, dag in asked.items() if dag.has_task(task_id)}
    if len(tasks) == 1:
        return next(iter(tasks.values()))
    if tasks:
        raise InvalidSettings("--dag", f"{_few(tasks)} have a task {printable(task_id, 100)}", "Write one of them")
    if not asked:
        raise InvalidSettings("--dag", f"the file has no DAG {printable(dag_id, 100)}", f"It has {_few(dags)}")
    known = [each for dag in asked.values() for each in dag.task_ids]
    raise InvalidSettings("--task", f"the file has no task {printable(task_id, 100)}", f"It has {_few(known)}")


def _dags(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        raise InvalidSettings("DAG", f"{printable(path)} is not a file", "Write the path of a DAG file")
    try:
        module = import_module("airflow.dag_processing.dagbag")
    except ImportError:  # Airflow 2, and 3.0
        module = import_module("airflow.models.dagbag")
    # Airflow 3 has its examples in a bundle of their own.
    named = signature(module.DagBag).parameters
    examples = {"include_examples": False} if "include_examples" in named else {}
    with redirect_stdout(sys.stderr):  # Of Airflow's log, and of what the file prints.
        bag = module.DagBag(path, safe_mode=False, **examples)
    if bag.import_errors:
        last = str(next(iter(bag.import_errors.values()))).strip().rpartition("\n")[2]
        raise InvalidSettings("DAG", printable(f"{path}: {last}", LONG), "Correct the file")
    if not bag.dags:
        raise InvalidSettings("DAG", f"{printable(path)} has no DAG", "Write the path of a file that makes one")
    dags: Mapping[str, Any] = bag.dags
    return dags


def _few(names: Iterable[str]) -> str:
    shown = [printable(each, 100) for each in sorted(set(names))[: _FEW + 1]]
    return ", ".join(shown[:_FEW]) + (" and others" if len(shown) > _FEW else "")
