"""The example of a function that trains, as Airflow sees it. Trains in tests/contract/test_scripts_by_tasks."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
from airflow.serialization.serialized_objects import DagSerialization

from elastic_runtime.run.shipment import unpack
from elastic_training.clusters.fake import FakeCluster
from tests.unit.provider.fakes import FakeTaskInstance

DAG_FILE = Path(__file__).resolve().parents[3] / "dags" / "first_training.py"


@pytest.fixture(scope="module")
def dag() -> Any:
    return runpy.run_path(str(DAG_FILE))["dag"]


def test_the_result_is_judged_after_the_training(dag: Any) -> None:
    assert {task.task_id: task.upstream_task_ids for task in dag.tasks} == {"train": set(), "judge": {"train"}}
    read = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    assert set(read.task_ids) == set(dag.task_ids)


def test_the_function_is_all_that_is_shipped(dag: Any, fake: FakeCluster) -> None:
    train = dag.get_task("train")
    train.wait_for_completion, train.cluster = False, "local"
    train.execute({"ti": FakeTaskInstance("train", dag_id="first_training")})
    [run] = fake.runs.values()
    files = unpack(run.document.spec.scripts)
    assert json.loads(files["task_arguments.json"]) == {"args": [0.05], "kwargs": {"epochs": 10}}
    assert set(files) == {"task_function.py", "task_arguments.json"}
