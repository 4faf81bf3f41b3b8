"""Rights that Airflow needs in a namespace of trainings: the role of ``deploy/rbac.yaml``, as data."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from elastic_runtime.kubernetes.client import Client

Right = tuple[str, str, str]
"""API group, resource with its part (``pods/log``), verb."""
_AT_ONCE = 8
"""Requests."""


NEEDED: tuple[Right, ...] = (
    *(("", "configmaps", verb) for verb in ("get", "list", "watch", "create", "patch", "delete")),
    *(("", "secrets", verb) for verb in ("create", "delete")),
    *(("", "services", verb) for verb in ("create", "get")),
    *(("batch", "jobs", verb) for verb in ("create", "get", "list", "watch", "delete")),
    *(("apps", "replicasets", verb) for verb in ("create", "get", "delete")),
    *(("apps", "replicasets/scale", verb) for verb in ("get", "patch")),
    *(("networking.k8s.io", "networkpolicies", verb) for verb in ("create", "get")),
    *(("policy", "poddisruptionbudgets", verb) for verb in ("create", "get")),
    *(("", "pods", verb) for verb in ("get", "list", "watch", "delete")),
    ("", "pods/log", "get"),
)
OPTIONAL: tuple[Right, ...] = (("", "configmaps/finalizers", "update"), ("", "events", "list"))
"""Without which trainings run, where no admission plugin asks for the first; the log says less without the second."""


async def missing(client: Client, rights: Sequence[Right] = NEEDED) -> list[Right]:
    """Those that whoever asks does not have in the client's namespace.

    Raises:
        ElasticError: as of every request, when the server does not say.
    """
    turn = asyncio.Semaphore(_AT_ONCE)
    answers: dict[Right, bool] = {}

    async def ask(right: Right) -> None:
        async with turn:
            answers[right] = await client.may(*right)

    try:
        async with asyncio.TaskGroup() as group:
            for right in rights:
                group.create_task(ask(right))
    except ExceptionGroup as several:  # Of one server that does not answer, all tell the same.
        raise several.exceptions[0] from None
    return [right for right in rights if not answers[right]]
