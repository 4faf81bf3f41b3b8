"""Whether a task can begin before another one is over, by the edges of their DAG. Pure."""

from __future__ import annotations

from typing import Any

_EARLY = frozenset({"one_success", "one_failed", "one_done"})
"""Trigger rules by which a task of several upstream tasks does not wait for all of them."""


def comes_after(dag: Any, task_id: str, other: str) -> bool:
    """Whether a task begins only once another one is over.

    Args:
        dag: of both.
        task_id: of the task.
        other: id of the other one.
    """
    seen: set[str] = set()
    waiting = [task_id]
    while waiting:
        each = waiting.pop()
        if each in seen:
            continue
        seen.add(each)
        task = dag.get_task(each)
        rule, upstream = str(getattr(task.trigger_rule, "value", task.trigger_rule)), task.upstream_task_ids
        if rule == "always" or (rule in _EARLY and len(upstream) > 1):
            continue
        if other in upstream:
            return True
        waiting += upstream
    return False
