"""Secret variables of a run, in a file of its folder that only its user can read.

They are in no job and no actor: Ray shows the runtime environments of both to everybody who can use its API, and keeps
them for ever. Whoever creates the run writes the file. Its launcher and its workers read it, and it goes with the run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from elastic_runtime.documents import parse_json, write_atomically
from elastic_runtime.errors import InvalidDocument, RunNotFound
from elastic_runtime.run.reading import read_bytes

_FILE = "credentials.json"


def write_credentials(folder: Path, variables: Mapping[str, str]) -> None:
    """Write them into a run's folder, if there are some."""
    if variables:
        write_atomically(folder / _FILE, json.dumps(dict(variables)), 0o600)


def read_credentials(folder: Path) -> dict[str, str]:
    """Return those of a run.

    Raises:
        InvalidDocument: the file cannot be read, or has something else.
    """
    try:
        found = parse_json(read_bytes(folder / _FILE))
    except RunNotFound:
        return {}
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise InvalidDocument(f"{folder / _FILE} has no variables")
    return found


def credentials_file(folder: Path) -> str:
    """Return the path for a worker to read them. Empty: the run has none."""
    return str(folder / _FILE) if (folder / _FILE).exists() else ""


def remove_credentials(folder: Path) -> None:
    """Remove them, since no process of the run will be started any more."""
    (folder / _FILE).unlink(missing_ok=True)
