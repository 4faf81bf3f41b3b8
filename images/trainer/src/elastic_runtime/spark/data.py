"""Parts of a DataFrame that ``elastic_training.spark.train`` has laid down for a script."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elastic_runtime.errors import InvalidSettings, StoreUnavailable
from elastic_runtime.printable import printable

VARIABLE = "ELASTIC_TRAINING_PARTS"
"""Names the folder to the ranks."""
S3 = "s3://"
_ARGUMENTS = {
    "access_key": "AWS_ACCESS_KEY_ID",
    "secret_key": "AWS_SECRET_ACCESS_KEY",
    "session_token": "AWS_SESSION_TOKEN",
    "region": "AWS_REGION",
    "endpoint_override": "AWS_ENDPOINT_URL_S3",
}
"""Of pyarrow's S3, and the variable that says the same."""


def parts() -> list[str]:
    """Return the names of the Parquet files, one for each partition, in the same order on every rank.

    They are paths or, in a store, ``s3://`` URIs, and pyarrow reads both. ``Shards`` takes them as names, so that each
    is trained on exactly once an epoch, whatever the world's sizes::

        shards = Shards(names=parts(), per_step=8, epochs=3, state=state)
        for step in shards:
            for shard in step:
                table = pyarrow.parquet.read_table(shard.name)

    Raises:
        InvalidSettings: this is no rank of ``elastic_training.spark.train``, or the folder is not here.
        StoreUnavailable: the store does not answer, or does not let this rank in.
    """
    if (folder := os.environ.get(VARIABLE)) is None:
        raise InvalidSettings(VARIABLE, "it is not set", "Start the script by elastic_training.spark.train")
    if not (found := parts_in(folder)):
        remedy = "Name a folder in data that all nodes see at one path"
        raise InvalidSettings("data", f"there are no Parquet files in {folder}", remedy)
    return found


def parts_in(folder: str, credentials: Mapping[str, str] | None = None) -> list[str]:
    """Return the names of the Parquet files in a folder or below an ``s3://`` URI.

    Args:
        folder: that was written.
        credentials: variables for the store; None: what pyarrow finds by itself.

    Raises:
        InvalidSettings: there is no pyarrow here, which a store needs.
        StoreUnavailable: the store does not answer.
    """
    if not folder.startswith(S3):
        return sorted(str(each) for each in Path(folder).glob("part-*.parquet"))
    store, path = s3_store(folder, credentials)
    from pyarrow.fs import FileSelector

    try:
        found = store.get_file_info(FileSelector(path, allow_not_found=True))
    except OSError as error:
        raise StoreUnavailable(f"{folder} cannot be listed: {printable(error, 500)}") from error
    return sorted(f"{S3}{each.path}" for each in found if each.base_name.endswith(".parquet"))


def s3_store(uri: str, credentials: Mapping[str, str] | None = None) -> tuple[Any, str]:
    """Return pyarrow's file system of an ``s3://`` URI, and the path in it. Arguments as :func:`parts_in`."""
    try:
        from pyarrow import fs
    except ImportError as error:
        remedy = "Install pyarrow in the program, in Spark's Python and where the ranks run"
        raise InvalidSettings("data", f"{uri} needs pyarrow, which is not installed", remedy) from error
    path = uri.removeprefix(S3).rstrip("/")
    given = {name: value for name, variable in _ARGUMENTS.items() if (value := (credentials or {}).get(variable))}
    try:
        return (fs.S3FileSystem(**given) if given else fs.FileSystem.from_uri(f"{S3}{path}")[0]), path
    except (OSError, ValueError) as error:
        raise StoreUnavailable(f"{uri} cannot be opened: {printable(error, 500)}") from error
