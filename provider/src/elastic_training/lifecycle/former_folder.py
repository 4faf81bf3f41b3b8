"""Checkpoints of runs from before names told deployments apart."""

from __future__ import annotations

from collections.abc import Callable

from elastic_runtime.errors import ElasticError
from elastic_training.identity.naming import TaskIdentity
from elastic_training.settings.store_credentials import StoreCredentials


def former_folder(
    task: TaskIdentity, checkpoint_uri: str, credentials: Callable[[], StoreCredentials | None]
) -> str | None:
    """The folder under the prefix that such a run of this task has, if it alone has any checkpoints.

    Best effort: a store that this process cannot reach has none.
    """
    if task.former_name is None:
        return None
    from elastic_runtime.checkpoint.store import open_store

    prefix = checkpoint_uri.rstrip("/")
    try:
        known = credentials()
        for name in (task.name, task.former_name):
            store = open_store(f"{prefix}/{name}", known.variables if known else None)
            try:
                if store.names():
                    return None if name == task.name else name
            finally:
                store.close()
    except ElasticError:
        return None
    return None
