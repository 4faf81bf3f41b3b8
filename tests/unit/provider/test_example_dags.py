"""The examples as Airflow sees them, without their connection. They train in tests/airflow/test_examples."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization

from elastic_training.settings.pods import Hardware

FOLDER = Path(__file__).resolve().parents[3] / "dags" / "examples"
SCRIPTS = ("circle.py", "circle_in_shards.py", "points_in_s3.py")
FILES = sorted(path for path in FOLDER.glob("*.py") if path.name not in SCRIPTS)


def dags(file: Path) -> list[Any]:
    return [value for value in runpy.run_path(str(file)).values() if isinstance(value, DAG)]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_example_survives_the_way_through_the_database_and_is_the_same_at_each_parse(file: Path) -> None:
    found = dags(file)
    assert found
    for dag, again in zip(found, dags(file), strict=True):
        written = DagSerialization.to_dict(dag)
        assert written == DagSerialization.to_dict(again)
        read = DagSerialization.from_dict(written)
        assert set(read.task_ids) == set(dag.task_ids)
        assert dag.description
        assert dag.doc_md


def test_every_parameter_has_a_type_and_a_description() -> None:
    for dag in (dag for file in FILES for dag in dags(file)):
        for name in dag.params:
            param = dag.params.get_param(name)
            assert "type" in param.schema, (dag.dag_id, name)
            assert param.description, (dag.dag_id, name)


@pytest.mark.parametrize(
    ("values", "gpus", "shm"),
    [
        ({}, 0, None),
        ({"gpus": 2, "shm": "8Gi"}, 2, "8Gi"),
        ({"machine": "g6.12xlarge"}, 4, "48Gi"),
        ({"machine": "g6.12xlarge", "gpus": 2}, 2, "48Gi"),
    ],
    ids=["as it is", "GPUs and shared memory", "a machine", "a part of a machine"],
)
def test_the_form_asks_for_machines(values: dict[str, Any], gpus: int, shm: str | None) -> None:
    [dag] = dags(FOLDER / "form.py")
    task = dag.get_task("train")
    task.render_template_fields({"params": dag.params.dump() | values | {"storage": "20Gi"}})
    hardware = Hardware.of(task.workers)
    assert (hardware.gpus, hardware.shm) == (gpus, shm)
    assert (hardware.machine is not None) is ("machine" in values)
    assert task.pods.worker.resources == {"requests": {"ephemeral-storage": "20Gi"}}


def test_the_form_bounds_its_numbers() -> None:
    [dag] = dags(FOLDER / "form.py")
    for name, value in {"epochs": 0, "rate": 0, "batch_size": 64, "min_workers": 5, "gpus": 9}.items():
        with pytest.raises(ValueError, match="Failed validating"):
            dag.params.get_param(name).resolve(value)


def test_scripts_of_frameworks_take_the_options_that_their_dags_give_them() -> None:
    for dag in dags(FOLDER / "frameworks.py"):
        [script] = dag.get_task("train").scripts
        words = [word.split("=")[0] for word in dag.get_task("train").command if word.startswith("--")]
        text = (FOLDER / script).read_text()
        assert words
        assert all(f'add_argument("{word}"' in text for word in words), script
