"""Files of a DataFrame, one for each partition, in a folder or in an S3: what ranks of a training read."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from elastic_runtime.checkpoint.store import validate_store_uri
from elastic_runtime.errors import InvalidSettings, StoreUnavailable
from elastic_runtime.spark.data import S3, parts_in, s3_store

_WRITTEN = "rows long"
"""Schema of what each partition's task returns."""


@dataclass(frozen=True, slots=True)
class Files:
    """The files of one training."""

    uri: str
    """Path of a folder, or an ``s3://`` URI."""

    @classmethod
    def below(cls, data: str | Path, name: str) -> Files:
        """Return those of that name below a folder or prefix. Raise InvalidSettings."""
        said = str(data).rstrip("/")
        if said.startswith(S3):
            validate_store_uri(said, "data")
            return cls(f"{said}/{name}")
        if scheme := urlsplit(said).scheme:
            if scheme != "file":
                problem = f"{scheme}:// is not a place for the files of a DataFrame"
                raise InvalidSettings("data", problem, "Write the path of a folder that all see, or s3://bucket/prefix")
            said = said.removeprefix("file://")
        return cls(str(Path(said).absolute() / name))

    @property
    def in_s3(self) -> bool:
        """Or in a folder."""
        return self.uri.startswith(S3)

    def write(self, df: Any, credentials: Mapping[str, str] | None) -> None:
        """Have Spark's executors write them.

        Args:
            df: the DataFrame.
            credentials: variables for the store; None: each executor's own.

        Raises:
            InvalidSettings: none was written, or the store needs pyarrow, which is not here.
            StoreUnavailable: the store does not answer.
        """
        if self.in_s3:
            write = _writer(*s3_store(self.uri, credentials))
            df.mapInArrow(write, _WRITTEN).write.format("noop").mode(
                "overwrite"
            ).save()  # No rows come back, but all tasks are done.
        else:
            df.write.parquet(Path(self.uri).as_uri())
        if not parts_in(self.uri, credentials):
            problem = f"Spark has written no files into {self.uri}"
            raise InvalidSettings("data", problem, "Name a folder that all see, and give it a DataFrame with rows")

    def remove(self, credentials: Mapping[str, str] | None) -> None:
        """Remove them, as far as that is possible now."""
        if not self.in_s3:
            shutil.rmtree(self.uri, ignore_errors=True)
            return
        with suppress(StoreUnavailable, InvalidSettings, OSError):
            store, path = s3_store(self.uri, credentials)
            store.delete_dir(path)


def _writer(store: Any, path: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return what writes the batches of one partition. Spark carries it whole: its Python needs nothing of ours."""

    def write(batches: Iterator[Any]) -> Iterator[Any]:
        import tempfile
        from shutil import copyfileobj

        import pyarrow
        from pyarrow import parquet
        from pyspark import TaskContext

        rows = 0
        with tempfile.TemporaryFile() as file:
            writer = None
            for batch in batches:
                if batch.num_rows:
                    writer = writer or parquet.ParquetWriter(file, batch.schema)
                    writer.write_batch(batch)
                    rows += batch.num_rows
            if writer is None:
                return
            writer.close()
            file.seek(0)
            # Only a partition that is whole gets here. Another try of the task writes the same name again.
            with store.open_output_stream(f"{path}/part-{TaskContext.get().partitionId():05}.parquet") as stream:
                copyfileobj(file, stream, 1 << 20)
        yield pyarrow.RecordBatch.from_pydict({"rows": [rows]})

    return write
