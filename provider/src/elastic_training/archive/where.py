"""Where what is kept of runs lies: ``[elastic_training] archive``, or else where the run itself lies.

That is, ``reports`` beside the runs under the task's checkpoint URI; for a run of this machine without one, ``archive``
in the folder of all runs; and for any other nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from elastic_runtime.checkpoint.store import CheckpointStore, has_plain_host, open_store, validate_store_uri
from elastic_runtime.errors import InvalidSettings
from elastic_training.airflow.sdk import conf
from elastic_training.archive.document import folder
from elastic_training.clusters.registry import SECTION, is_local, local_settings, location
from elastic_training.identity.naming import TaskIdentity
from elastic_training.settings.store_credentials import store_credentials

REPORTS = "reports"
"""Beside the runs' folders under a checkpoint URI; no run is called so."""
NEWEST = 200
"""Tries of a task, over all its DAG runs, that are kept by default."""


@dataclass(frozen=True, slots=True)
class Address:
    """The place of an archive, or of checkpoints."""

    uri: str
    conn_id: str | None = None
    """Airflow connection with the credentials; None: what this process finds by itself."""

    @property
    def server(self) -> str:
        """Server that an outage concerns: a folder, or a bucket as a connection reaches it."""
        parts = urlsplit(self.uri)
        where = self.uri if parts.scheme == "file" else f"{parts.scheme}://{parts.netloc}"
        return f"{where} (connection {self.conn_id})" if self.conn_id else where


def configured() -> Address | None:
    """By ``[elastic_training] archive`` and ``archive_conn_id``. Raises InvalidSettings."""
    given = str(conf.get(SECTION, "archive", fallback="") or "").strip()
    if not given:
        return None
    uri = Path(given).as_uri() if given.startswith("/") else given.rstrip("/")
    validate_store_uri(uri, f"[{SECTION}] archive")
    return Address(uri, str(conf.get(SECTION, "archive_conn_id", fallback="") or "").strip() or None)


def newest() -> int:
    """How many tries of a task are kept; 0: all."""
    given = str(conf.get(SECTION, "archive_keep", fallback="") or "").strip()
    return int(given) if given.isdecimal() and len(given) < 10 else NEWEST


def address_of(checkpoints: str | None, conn_id: str | None, place: str) -> Address | None:
    """For a run; None: nothing is kept of it.

    Args:
        checkpoints: ``checkpoint_uri`` of its task: under it each of the task's runs has a folder of its own.
        conn_id: Airflow connection with its credentials.
        place: the cluster's own name.

    Raises:
        InvalidSettings: what is configured cannot be.
    """
    if given := configured():
        return given
    if checkpoints:
        return beside(checkpoints, conn_id)
    return of_this_machine() if is_local(place) else None


def beside(checkpoints: str, conn_id: str | None) -> Address:
    """The runs under a checkpoint URI. Raises InvalidSettings for what is none, or has a secret in the host's place."""
    validate_store_uri(checkpoints, "checkpoint_uri")
    if not has_plain_host(checkpoints):
        raise InvalidSettings("checkpoint_uri", "it has a user or a password", "Write it without")
    return Address(f"{checkpoints.rstrip('/')}/{REPORTS}", conn_id or None)


def of_this_machine() -> Address:
    """Return the archive of local runs."""
    return Address((local_settings()[0].absolute() / "archive").as_uri())


def of_rendered(rendered: Mapping[str, Any]) -> Address | None:
    """Return a task's archive from its fields as Airflow stored them when a try began. Asks Airflow for connections.

    Raises:
        InvalidSettings: they are none that a task of ours has.
    """
    checkpoints = checkpoints_of(rendered)
    return None if checkpoints is None else beside(checkpoints.uri, checkpoints.conn_id)


def checkpoints_of(rendered: Mapping[str, Any]) -> Address | None:
    """Return where the checkpoints of a task's runs are, as :func:`of_rendered`; None: nowhere."""
    uri, conn_id = rendered.get("checkpoint_uri"), rendered.get("checkpoint_conn_id")
    if uri is None and isinstance(cluster := rendered.get("cluster"), str) and (said := location(cluster)) is not None:
        uri, conn_id = said.checkpoint_uri, conn_id or said.checkpoint_conn_id
    if not isinstance(uri, str) or not uri:
        return None
    return Address(uri.rstrip("/"), conn_id if isinstance(conn_id, str) else None)


def credentials(address: Address) -> Mapping[str, str] | None:
    """Return the credentials of the archive's Airflow connection. None: it has none. Raise InvalidSettings."""
    return store_credentials(address.uri, address.conn_id).variables if address.conn_id else None


@contextmanager
def opened(archive: str, task: TaskIdentity, variables: Mapping[str, str] | None) -> Iterator[CheckpointStore]:
    """Open the folder of a task in an archive, and close its store at the end."""
    store = open_store(f"{archive}/{folder(task)}", variables)
    try:
        yield store
    finally:
        store.close()
