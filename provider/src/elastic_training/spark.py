"""From a DataFrame to a trained model: :func:`train`, for programs that have a Spark session."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from elastic_runtime.errors import ElasticError, InvalidSettings
from elastic_runtime.run.spec import CheckpointSpec, RunSpec, Timing
from elastic_runtime.run.status import Phase, Status
from elastic_runtime.spark.data import VARIABLE, parts_in
from elastic_training.clusters.cluster import Cluster
from elastic_training.clusters.location import SparkName
from elastic_training.clusters.registry import cluster_called, local_settings, own_name
from elastic_training.clusters.types import RunRef
from elastic_training.concurrency.bridge import run
from elastic_training.exceptions import failure_of
from elastic_training.settings.spark import Spark, spark_of
from elastic_training.settings.values import settings_of
from elastic_training.settings.workers import Workers

LOOK = 1.0
"""Seconds between two looks at the run."""
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Trained:
    """A training that has succeeded."""

    checkpoint: str | None
    """URI of the newest checkpoint, which has the model; None: ``checkpoint_uri`` was not set."""
    outputs: str | None
    """URI of the files that rank 0 has left; None: there are none."""
    metrics: Mapping[str, float]
    """The newest value of each."""
    returned: Any
    """What the function of rank 0 has returned."""
    world_sizes: tuple[int, ...]
    """Of each generation."""
    status: Status
    """The final status, with all the rest."""


def train(
    df: Any,
    command: Sequence[str],
    *,
    cluster: str,
    data: str | Path,
    workers: Workers | Mapping[str, Any] | None = None,
    spark: Spark | Mapping[str, Any] | None = None,
    checkpoint_uri: str | None = None,
    environment: Mapping[str, str] | None = None,
    engine: str = "torch",
    name: str = "dataframe",
) -> Trained:
    """Train on a DataFrame, and return the model and its metrics. Blocks until the training is over.

    Each partition becomes a Parquet file, which is removed afterwards. The script has their paths from
    :func:`elastic_runtime.spark.data.parts`, and divides them with ``Shards``. If an exception interrupts this, the run
    ends. If the program is killed, the run goes on to its end.

    Args:
        df: the DataFrame. It is computed once. Give it several partitions for each worker.
        command: of a rank, at a path that the nodes have.
        cluster: where the workers run: ``spark://HOST:PORT/FOLDER``, ``local``, or a connection that leads there.
        data: folder for the files, on a file system that Spark's nodes, the workers and this program see at one path.
        workers: minimum, start and maximum; by default one.
        spark: how workers are had.
        checkpoint_uri: prefix of checkpoints; a folder of the run is made below.
        environment: further variables of ranks.
        engine: ``torch`` or ``horovod``.
        name: of the run.

    Raises:
        InvalidSettings: an argument cannot be, or the DataFrame has no partitions.
        ClusterUnavailable: the run cannot be created now.
        TrainingFailed: it has failed.
    """
    if not _NAME.fullmatch(name):
        raise InvalidSettings("name", f"{name[:100]!r} is not a name", "Write lower case letters, digits and hyphens")
    settings = settings_of(Workers, "workers", workers or Workers(), "Workers(min=1, max=4)")
    place, made = own_name(cluster), spark_of(spark) or Spark()
    uid = uuid4().hex
    checkpoint = None
    if checkpoint_uri:
        checkpoint = CheckpointSpec(f"{checkpoint_uri.rstrip('/')}/{name}-{uid[:8]}", fence=int(time.time()))
    folder = Path(data).absolute() / f"{name}-{uid[:8]}"
    spec = RunSpec(
        name=f"{name}-{uid[:8]}",
        uid=uid,
        command=tuple(command),
        workers=settings.spec(),
        checkpoint=checkpoint,
        environment={**(environment or {}), VARIABLE: str(folder)},
        timing=Timing(lease=0.0),  # Nobody renews it.
        engine=engine,
    )
    where = _cluster(place, made, int(settings.equipped().gpus or 0))
    try:
        df.write.parquet(folder.as_uri())
        if not parts_in(folder):
            raise InvalidSettings("data", f"Spark has written no files into {folder}", "Name a folder that all see")
        return _trained(_to_the_end(where, spec))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _cluster(place: str, spark: Spark, gpus: int) -> Cluster:
    in_spark = SparkName.parse(place)
    if in_spark is None and place != "local":
        problem = f"{place!r} is neither in Spark nor on this machine"
        raise InvalidSettings("cluster", problem, 'Write "spark://HOST:PORT/FOLDER" or "local"')
    python = local_settings()[1]
    return cluster_called(place, spark.spec(in_spark.master, python, gpus=gpus) if in_spark else None)


def _to_the_end(cluster: Cluster, spec: RunSpec) -> Status:
    """Have the run, and none once this is left."""
    owner = f"train {spec.uid}"
    ref: RunRef = run(cluster.claim(spec, owner)).ref
    try:
        while not (status := run(cluster.status(ref))).phase.final:
            time.sleep(LOOK)
    except BaseException:  # raised again: whatever ends this, no run goes on without it
        with suppress(ElasticError):
            run(cluster.cancel(ref, "the program that has started it does not wait any more", owner))
        raise
    if status.phase is not Phase.SUCCEEDED:
        raise failure_of(status)
    with suppress(ElasticError):  # What is left of it harms nobody.
        run(cluster.delete(ref, owner))
    return status


def _trained(status: Status) -> Trained:
    return Trained(
        checkpoint=status.checkpoint.uri if status.checkpoint else None,
        outputs=status.outputs.uri if status.outputs else None,
        metrics=dict(status.metrics),
        returned=status.returned,
        world_sizes=tuple(world.size for world in status.history if world.size),
        status=status,
    )
