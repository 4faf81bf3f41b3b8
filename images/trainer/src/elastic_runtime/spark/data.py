"""Parts of a DataFrame that ``elastic_training.spark.train`` has laid down for a script."""

from __future__ import annotations

import os
from pathlib import Path

from elastic_runtime.errors import InvalidSettings

VARIABLE = "ELASTIC_TRAINING_PARTS"
"""Names the folder to the ranks."""


def parts() -> list[str]:
    """Return the paths of the Parquet files, one for each partition, in the same order on every rank.

    They are names for ``Shards``, with which each is trained on exactly once an epoch, whatever the world's sizes::

        shards = Shards(names=parts(), per_step=8, epochs=3, state=state)
        for step in shards:
            for shard in step:
                table = pyarrow.parquet.read_table(shard.name)

    Raises:
        InvalidSettings: this is no rank of ``elastic_training.spark.train``, or the folder is not here.
    """
    if (folder := os.environ.get(VARIABLE)) is None:
        raise InvalidSettings(VARIABLE, "it is not set", "Start the script by elastic_training.spark.train")
    if not (found := parts_in(Path(folder))):
        remedy = "Name a folder in data that all nodes see at one path"
        raise InvalidSettings("data", f"there are no Parquet files in {folder}", remedy)
    return found


def parts_in(folder: Path) -> list[str]:
    """Return the paths of the Parquet files that Spark has written into a folder."""
    return sorted(str(each) for each in folder.glob("part-*.parquet"))
