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

SCRIPT = Path(__file__).with_name("adds_up.py")
ROWS, PARTITIONS = 1000, 9
pytestmark = pytest.mark.timeout(400)


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
