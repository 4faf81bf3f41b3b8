"""Mapped training tasks: arguments of ``partial`` are checked at parse, and bad ones of ``expand`` are not retried."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from elastic_runtime.errors import InvalidSettings
from elastic_training.airflow.sdk import AirflowFailException

_MAPPED = "{{ mapped }}"
_UNKNOWN = dict.fromkeys(("command", "workers", "checkpoint_uri", "cluster"), _MAPPED)
"""What ``expand`` may still bring, where it matters for the others."""


def check_partial(operator: type[Any], given: Mapping[str, Any]) -> None:
    """Check arguments of a training operator as far as they are known.

    Args:
        operator: its class, with ``settle``.
        given: to its ``partial``.

    Raises:
        InvalidSettings: as the operator itself would.
    """
    probe = object.__new__(operator)  # Not a task: Airflow would put that into the DAG.
    object.__setattr__(probe, "_lock_for_execution", True)  # So that Airflow minds no argument.
    for name, default in _parameters(operator).items():
        object.__setattr__(probe, name, given.get(name, _UNKNOWN.get(name, default)))
    probe.settle()


@contextmanager
def unmapping(task: Any) -> Iterator[None]:
    """A bad value of a mapped task comes to light in the task's own process: then it fails without another try."""
    try:
        yield
    except InvalidSettings as error:
        if getattr(task, "_BaseOperator__from_mapped", False):
            raise AirflowFailException(str(error)) from None
        raise


def _parameters(operator: type[Any]) -> dict[str, Any]:
    """Of a class and its bases but Airflow's, with their defaults."""
    bases = [each for each in reversed(operator.__mro__) if not each.__module__.startswith("airflow.")]
    inits = [inspect.unwrap(vars(each)["__init__"]) for each in bases if inspect.isfunction(vars(each).get("__init__"))]
    parameters = [each for init in inits for each in inspect.signature(init).parameters.values()]
    return {each.name: each.default for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY}
