"""From a DataFrame to a trained model: :func:`train`, for programs that have a Spark session."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

from elastic_runtime.errors import ClusterUnavailable, ElasticError, InvalidSettings
from elastic_runtime.run.spec import CheckpointSpec, RunSpec, Timing
from elastic_runtime.run.status import Phase, Status
from elastic_runtime.spark.data import VARIABLE
from elastic_runtime.spark.jobs import SparkSpec
from elastic_training.clusters.cluster import Cluster
from elastic_training.clusters.location import LOCAL, Location, SparkName
from elastic_training.clusters.registry import cluster_called, local_settings, location
from elastic_training.clusters.types import RunRef
from elastic_training.concurrency.bridge import run
from elastic_training.exceptions import failure_of
from elastic_training.settings.spark import Spark, spark_of
from elastic_training.settings.store_credentials import store_credentials
from elastic_training.settings.values import settings_of
from elastic_training.settings.workers import Workers
from elastic_training.spark_files import Files

LOOK = 1.0
"""Seconds between two looks at the run."""
OUTAGE = 300.0
"""Seconds for which its status may not be readable."""
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
    credentials: Mapping[str, str] | None = field(default=None, repr=False)
    """With which the checkpoint is read; None: those of this process."""

    def state(self) -> dict[str, Any]:
        """Return what the script's state held at the newest checkpoint, by name. Needs torch in this program.

        ::

            model.load_state_dict(trained.state()["model"])

        Raises:
            InvalidSettings: the run has no checkpoint, or there is no torch here.
            StoreUnavailable: the store does not answer.
        """
        if self.checkpoint is None:
            remedy = "Set checkpoint_uri, and keep the model in a DurableState"
            raise InvalidSettings("checkpoint_uri", "the run has left no checkpoint", remedy)
        try:
            durable = import_module("elastic_runtime.torch.durable")  # Which imports torch.
        except ImportError as error:
            remedy = f"Install torch, or read it elsewhere: {self.checkpoint}"
            raise InvalidSettings("state", f"no checkpoint can be read here: {error}", remedy) from error
        found: dict[str, Any] = durable.load_checkpoint(self.checkpoint, self.credentials)
        return found


def train(
    df: Any,
    command: Sequence[str],
    *,
    cluster: str,
    data: str | Path,
    workers: Workers | Mapping[str, Any] | None = None,
    spark: Spark | Mapping[str, Any] | None = None,
    checkpoint_uri: str | None = None,
    checkpoint_conn_id: str | None = None,
    environment: Mapping[str, str] | None = None,
    engine: str = "torch",
    name: str = "dataframe",
) -> Trained:
    """Train on a DataFrame, and return the model and its metrics. Blocks until the training is over.

    Each partition becomes a Parquet file, which is removed afterwards. The script has their names from
    :func:`elastic_runtime.spark.data.parts`, and divides them with ``Shards``. If an exception interrupts this, the run
    ends. If the program is killed, the run goes on to its end.

    Args:
        df: the DataFrame. It is computed once. Give it several partitions for each worker.
        command: of a rank, at a path that the nodes have.
        cluster: where the workers run: ``spark://HOST:PORT/FOLDER``, ``local``, or a connection that leads there.
        data: where the files are. A folder that Spark's nodes, the workers and this program see at one path, or
            ``s3://bucket/prefix``, for which Spark's Python, ranks and this program need ``pyarrow``.
        workers: minimum, start and maximum; by default one.
        spark: how workers are had.
        checkpoint_uri: prefix of checkpoints; a folder of the run is made below.
        checkpoint_conn_id: Airflow connection with credentials for the store of ``data`` if that is ``s3://``, else for
            that of ``checkpoint_uri``. Ranks and Spark's tasks get them. None: each uses what it finds by itself.
        environment: further variables of ranks.
        engine: ``torch`` or ``horovod``.
        name: of the run.

    Raises:
        InvalidSettings: an argument cannot be, or the DataFrame has no rows.
        StoreUnavailable: the store of ``data`` does not answer.
        ClusterUnavailable: the run cannot be created now.
        TrainingFailed: it has failed.
    """
    if not _NAME.fullmatch(name):
        raise InvalidSettings("name", f"{name[:100]!r} is not a name", "Write lower case letters, digits and hyphens")
    settings = settings_of(Workers, "workers", workers or Workers(), "Workers(min=1, max=4)")
    said, uid = location(cluster), uuid4().hex
    if said and checkpoint_uri is None:  # The credentials are the connection's, too: they are for that store.
        checkpoint_uri = said.checkpoint_uri
        checkpoint_conn_id = checkpoint_conn_id or said.checkpoint_conn_id
    own = f"{name}-{uid[:8]}"
    files = Files.below(data, own)
    credentials: Mapping[str, str] | None = None
    if checkpoint_conn_id is not None:
        credentials = store_credentials(files.uri if files.in_s3 else checkpoint_uri, checkpoint_conn_id).variables
    spec = RunSpec(
        name=own,
        uid=uid,
        command=tuple(command),
        workers=settings.spec(),
        checkpoint=_checkpoint(checkpoint_uri, own),
        environment={**(environment or {}), VARIABLE: files.uri},
        timing=Timing(lease=0.0),  # Nobody renews it.
        engine=engine,
    )
    gpus = int(settings.equipped().gpus or 0)
    where = _cluster(said.cluster if said else cluster, said, spark_of(spark) or Spark(), gpus, credentials or {})
    try:
        files.write(df, credentials)
        return _trained(_to_the_end(where, spec), credentials)
    finally:
        files.remove(credentials)


def _checkpoint(uri: str | None, own: str) -> CheckpointSpec | None:
    return CheckpointSpec(f"{uri.rstrip('/')}/{own}", fence=int(time.time())) if uri else None


def _cluster(place: str, said: Location | None, spark: Spark, gpus: int, credentials: Mapping[str, str]) -> Cluster:
    in_spark = SparkName.parse(place)
    if in_spark is None and place != LOCAL:
        problem = f"{place!r} is neither in Spark nor on this machine"
        raise InvalidSettings("cluster", problem, 'Write "spark://HOST:PORT/FOLDER" or "local"')
    jobs: SparkSpec | None = None
    if in_spark:
        python, pyspark = (said.python, said.pyspark) if said else (None, None)
        jobs = spark.spec(in_spark.master, python or local_settings()[1], gpus=gpus, pyspark=pyspark)
    cluster = cluster_called(place, jobs)
    if credentials:
        cluster.set_rank_credentials(credentials)
    return cluster


def _to_the_end(cluster: Cluster, spec: RunSpec) -> Status:
    """Have the run, and none once this is left."""
    owner = f"train {spec.uid}"
    ref: RunRef = run(cluster.claim(spec, owner)).ref
    try:
        status = _final(cluster, ref)
    except BaseException:  # raised again: whatever ends this, no run goes on without it
        with suppress(ElasticError):
            run(cluster.cancel(ref, "the program that has started it does not wait any more", owner))
        raise
    if status.phase is not Phase.SUCCEEDED:
        raise failure_of(status)
    with suppress(ElasticError):  # What is left of it harms nobody.
        run(cluster.delete(ref, owner))
    return status


def _final(cluster: Cluster, ref: RunRef) -> Status:
    """The run's last status, once there is one."""
    heard = time.monotonic()
    while True:
        try:
            status = run(cluster.status(ref))
        except ClusterUnavailable:
            if time.monotonic() > heard + OUTAGE:
                raise
        else:
            heard = time.monotonic()
            if status.phase.final:
                return status
        time.sleep(LOOK)


def _trained(status: Status, credentials: Mapping[str, str] | None) -> Trained:
    return Trained(
        checkpoint=status.checkpoint.uri if status.checkpoint else None,
        outputs=status.outputs.uri if status.outputs else None,
        metrics=dict(status.metrics),
        returned=status.returned,
        world_sizes=tuple(world.size for world in status.history if world.size),
        status=status,
        credentials=credentials,
    )
