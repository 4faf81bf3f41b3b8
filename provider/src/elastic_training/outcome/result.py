"""The result document: what a training task leaves for the tasks behind it."""

from __future__ import annotations

from typing import Any

from elastic_runtime.documents import parse_json, to_plain
from elastic_runtime.errors import InvalidDocument
from elastic_runtime.run.status import Status
from elastic_training.cost.bill import plain_usage, usage_of

RESULT_VERSION = 1


def result_document(status: Status, cost: dict[str, Any] | None = None, report: str | None = None) -> dict[str, Any]:
    """A final status as plain JSON types, for XCom.

    Args:
        status: of the run.
        cost: of the run, as :func:`elastic_training.cost.bill.plain_bill` writes it; None: not known.
        report: URI of what was kept for people; None: nothing was.

    Returns:
        ``version``; ``run``, ``uid``; ``phase``, ``reason``, ``failure``, ``exit_code`` (of the rank that failed first,
        or None); ``first_failure`` (that rank: ``rank``, ``worker``, ``rank_id``, ``step``, ``exit_code``, ``time``,
        ``message``, ``traceback``; None: none failed);
        ``checkpoint`` (``uri``, ``step``, ``time``; None without one); ``metrics`` (newest value of each);
        ``returned`` (by the function of rank 0, or None);
        ``outputs`` (``uri`` of their folder in the checkpoint store, ``files``, ``bytes``; None: rank 0 left none);
        ``steps`` (newest global step; None: not known, since the script has told none); ``total_steps`` (of the whole
        training, as the script has told; None: it has not);
        ``world_sizes`` (ranks of each generation, repetitions left out); ``history`` and ``events`` (as in the status,
        bounded); ``worker_seconds`` by worker and ``worker_seconds_total``;
        ``memory`` (each time that a worker got more: ``time``, ``worker``, ``before`` and ``after`` in bytes,
        ``step``); ``usage`` (seconds by kind of machine, idle ones apart), ``cost``; ``report``;
        ``timeline`` (URI, or None) and ``profiles`` (URIs, one a rank) of what was asked to be observed;
        ``started`` (first world), ``finished`` (RFC 3339, UTC) and ``seconds`` between them, None when it never
        trained.
    """
    plain = to_plain(status)
    seconds = None
    if status.started is not None and status.finished is not None:
        seconds = max(0.0, (status.finished - status.started).total_seconds())
    return {
        "version": RESULT_VERSION,
        "run": status.run,
        "uid": status.uid,
        "phase": status.phase.value,
        "reason": status.reason,
        "failure": plain["failure"],
        "exit_code": status.exit_code,
        "first_failure": plain["first_failure"],
        "checkpoint": plain["checkpoint"],
        "metrics": dict(plain["metrics"]),
        "returned": _returned(status),
        "outputs": plain["outputs"],
        "steps": status.step,
        "total_steps": status.progress and status.progress.steps,
        "world_sizes": world_sizes(status),
        "history": list(plain["history"]),
        "events": list(plain["events"]),
        "worker_seconds": dict(plain["worker_seconds"]),
        "worker_seconds_total": sum(status.worker_seconds.values()),
        "memory": list(plain.get("memory", ())),
        "usage": plain_usage(usage_of(status)),
        "cost": cost,
        "report": report,
        "timeline": status.timeline,
        "profiles": list(status.profiles),
        "started": plain["started"],
        "finished": plain["finished"],
        "seconds": seconds,
    }


def _returned(status: Status) -> Any:
    try:
        return None if status.returned is None else parse_json(status.returned)
    except InvalidDocument:  # No launcher of ours has written that, and a training is not failed for it.
        return None


def world_sizes(status: Status) -> list[int]:
    """Ranks of each world that trained, in order, equal neighbours merged: ``[2, 3, 2]``."""
    sizes: list[int] = []
    for world in status.history:
        if world.size > 0 and sizes[-1:] != [world.size]:
            sizes.append(world.size)
    return sizes
