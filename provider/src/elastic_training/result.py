"""The result document: what a training task leaves for the tasks behind it."""

from __future__ import annotations

from typing import Any

from elastic_runtime.documents import to_plain
from elastic_runtime.status import Status

RESULT_VERSION = 1


def result_document(status: Status) -> dict[str, Any]:
    """A final status as plain JSON types, for XCom.

    Returns:
        ``version``; ``run``, ``uid``; ``phase``, ``reason``, ``failure``, ``exit_code`` (of the rank that failed, or
        None); ``checkpoint`` (``uri``, ``step``, ``time``; None without one); ``metrics`` (newest value of each);
        ``steps`` (newest global step); ``world_sizes`` (ranks of each generation, repetitions left out); ``history``
        and ``events`` (as in the status, bounded); ``worker_seconds`` by worker and ``worker_seconds_total``;
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
        "checkpoint": plain["checkpoint"],
        "metrics": dict(plain["metrics"]),
        "steps": status.step,
        "world_sizes": world_sizes(status),
        "history": list(plain["history"]),
        "events": list(plain["events"]),
        "worker_seconds": dict(plain["worker_seconds"]),
        "worker_seconds_total": sum(status.worker_seconds.values()),
        "started": plain["started"],
        "finished": plain["finished"],
        "seconds": seconds,
    }


def world_sizes(status: Status) -> list[int]:
    """Ranks of each world that trained, in order, equal neighbours merged: ``[2, 3, 2]``."""
    sizes: list[int] = []
    for world in status.history:
        if world.size > 0 and sizes[-1:] != [world.size]:
            sizes.append(world.size)
    return sizes
