"""The timeline of a run, out of the store of its checkpoints: people's browsers cannot read ``s3://`` and ``file://``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from typing import Any

from elastic_runtime.checkpoint.store import open_store
from elastic_runtime.errors import ClusterUnavailable, InvalidDocument, RunNotFound
from elastic_training.archive.where import Address, beside, checkpoints_of, credentials
from elastic_training.console import page
from elastic_training.console.asking import Deadline
from elastic_training.identity.naming import TaskIdentity
from elastic_training.lifecycle.clearing import is_folder_of
from elastic_training.redaction.values import masked

LARGEST = 32 * 1024 * 1024
"""Bytes that an API server reads, compressed: some ten times as much without."""
_NAME = re.compile(r"traces/timeline-[0-9]{1,18}\.json\.gz")


def read(task: TaskIdentity, try_number: int | None) -> bytes:
    """Return the merged timeline of a try, as JSON that gzip has compressed; for a thread of the API server.

    Args:
        task: whoever asks may see its log and its results.
        try_number: None: the newest.

    Raises:
        RunNotFound: there is none, or none that the page serves.
        ElasticError: place or store do not answer.
        InvalidSettings: Airflow has no such connection.
    """
    seen = page.look(task, try_number)
    status = seen and (seen.present.status if seen.present else seen.kept and seen.kept.status)
    if seen is None or not status:
        if seen and seen.trouble:
            raise ClusterUnavailable(seen.trouble)
        raise RunNotFound("There is no run of this try, and nothing was kept of one")
    if status.timeline is None:
        raise RunNotFound("This try has no timeline, or not yet: it is merged at the end of a run of Horovod")
    deadline = Deadline()
    address, name = deadline.ask(
        "Airflow, for the task's checkpoints,", partial(_found, task, seen.settings, status.timeline)
    )
    try:
        return deadline.ask(f"the store {address.server}", partial(_read, address, name))
    except InvalidDocument as error:
        raise RunNotFound(f"{masked(status.timeline)} cannot be shown: {error}. Copy it from the store") from error


def _found(task: TaskIdentity, settings: Mapping[str, Any], uri: str) -> tuple[Address, str]:
    """The run's folder, by the task's own settings, and the file there: the URI is the run's word."""
    checkpoints = checkpoints_of(settings)
    if checkpoints is not None:
        beside(checkpoints.uri, checkpoints.conn_id)  # Or it is none.
        folder, _, name = uri.removeprefix(f"{checkpoints.uri}/").partition("/")
        if (folder == task.name or is_folder_of(task.name, folder)) and _NAME.fullmatch(name):
            return Address(f"{checkpoints.uri}/{folder}", checkpoints.conn_id), name
    raise RunNotFound(f"{masked(uri)} is not under the task's checkpoint_uri. Copy it from the store")


def _read(address: Address, name: str) -> bytes:
    with closing(open_store(address.uri, credentials(address))) as store, store.open_beside(name, LARGEST) as stream:
        return stream.read(LARGEST)
