"""``elastic_training.spark.train``: from a DataFrame of a real Spark to a model and its metrics."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elastic_runtime.errors import FailureKind, InvalidSettings
from elastic_training.exceptions import TrainingFailed
from elastic_training.settings import Spark, Workers
from elastic_training.spark import train
from tests.contract.cluster_kinds import trainer_python
from tests.s3_server import CREDENTIALS, new_bucket, s3_client, s3_server

SCRIPT = Path(__file__).with_name("adds_up.py")
ROWS, PARTITIONS = 1000, 9
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def lab() -> Iterator[dict[str, Any]]:
    """The Spark of ``tools/spark with``, whose pyspark this interpreter imports, too."""
    assert "SPARK_LAB" in os.environ, "run me through tools/spark with --"
    found = json.loads(os.environ["SPARK_LAB"])
    [found["site"]] = Path(found["python"]).parents[1].glob("lib/python*/site-packages")
    sys.path.append(str(found["site"]))
    yield found
    sys.path.remove(str(found["site"]))


@pytest.fixture(scope="module")
def frame(lab: dict[str, Any]) -> Iterator[Any]:
    """A DataFrame with several partitions."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = lab["python"]
    session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    yield session.range(ROWS, numPartitions=PARTITIONS).withColumnRenamed("id", "number")
    session.stop()


@pytest.fixture(scope="module")
def arrow(frame: Any) -> None:
    """What pyarrow's S3 starts once in a process, and Spark once in a session that runs Python, and they keep."""
    from pyarrow.fs import S3FileSystem

    S3FileSystem(anonymous=True, region=CREDENTIALS["AWS_REGION"])
    frame.mapInArrow(lambda batches: batches, frame.schema).write.format("noop").mode("overwrite").save()


@pytest.fixture
def with_torch(lab: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """This interpreter imports the trainer's torch, too, as a program that goes on with the model does."""
    [site] = Path(trainer_python()).parents[1].glob("lib/python*/site-packages")
    monkeypatch.setattr(sys, "path", [*sys.path, str(site)])


@pytest.fixture
def arguments(lab: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Of a training in that cluster."""
    monkeypatch.setenv("AIRFLOW__ELASTIC_TRAINING__LOCAL_PYTHON", trainer_python())
    return {
        "cluster": f"{lab['master']}{tmp_path}/runs",
        "data": tmp_path / "data",
        "workers": Workers(min=1, start=2, max=2),
        "spark": Spark(pyspark=lab["python"], grace=20),
        "checkpoint_uri": (tmp_path / "checkpoints").as_uri(),
        # Ranks import what this process does, also where the runtime that is installed is another one.
        "environment": {"WITH_PYARROW": str(lab["site"]), "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
    }


def test_each_row_is_trained_on_once(frame: Any, arguments: dict[str, Any], tmp_path: Path) -> None:
    trained = train(frame, ["python", str(SCRIPT)], **arguments)

    assert trained.metrics["total"] == sum(range(ROWS))
    assert trained.checkpoint is not None
    assert trained.checkpoint.startswith(arguments["checkpoint_uri"])
    assert trained.world_sizes
    assert list((tmp_path / "data").iterdir()) == [], "the files are of no use any more"


def test_the_model_comes_back(frame: Any, arguments: dict[str, Any], with_torch: None) -> None:
    trained = train(frame, ["python", str(SCRIPT)], **arguments)

    state = trained.state()
    assert state["total"] == sum(range(ROWS))
    assert {name: tuple(value.shape) for name, value in state["model"].items()} == {"weight": (1, 1), "bias": (1,)}


def test_files_and_checkpoints_are_in_an_s3(
    frame: Any,
    arguments: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    with_torch: None,
    arrow: None,
) -> None:
    with s3_server() as url:
        bucket = new_bucket(url)
        login = (CREDENTIALS["AWS_ACCESS_KEY_ID"], CREDENTIALS["AWS_SECRET_ACCESS_KEY"])
        extra = {"endpoint_url": url, "region_name": CREDENTIALS["AWS_REGION"]}
        connection = {"conn_type": "aws", "login": login[0], "password": login[1], "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps(connection))
        place = {"data": f"s3://{bucket}/frames", "checkpoint_uri": f"s3://{bucket}/checkpoints"}

        trained = train(
            frame.where("number % 7 < 5").repartition(5),
            ["python", str(SCRIPT)],
            **{**arguments, **place},
            checkpoint_conn_id="store",
        )

        assert trained.metrics["total"] == sum(each for each in range(ROWS) if each % 7 < 5)
        assert trained.state()["total"] == trained.metrics["total"]
        assert "tests" not in repr(trained).replace(bucket, ""), "the secret is in no log"
        left = s3_client(url).list_objects_v2(Bucket=bucket, Prefix="frames/")
        assert [each["Key"] for each in left.get("Contents", ()) if each["Size"]] == []
        s3_client(url).close()
    assert not (tmp_path / "data").exists()


def test_a_script_that_fails_is_an_error_and_leaves_no_files(
    frame: Any, arguments: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(TrainingFailed) as caught:
        train(frame, ["python", "-c", "raise SystemExit(3)"], **arguments)
    assert caught.value.kind is FailureKind.RANK_FAILED
    assert list((tmp_path / "data").iterdir()) == []


def test_another_place_is_refused_before_anything_is_written(
    frame: Any, arguments: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(InvalidSettings, match="is neither in Spark nor on this machine"):
        train(frame, ["true"], **{**arguments, "cluster": "slurm:/shared"})
    assert not (tmp_path / "data").exists()
