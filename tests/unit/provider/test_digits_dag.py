"""The example DAG as Airflow sees it: shape and parameters. What parsing it costs: ``test_light_imports``."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowSkipException
from airflow.serialization.serialized_objects import DagSerialization

from digits.code import copy_code

DAG_FILE = Path(__file__).resolve().parents[3] / "dags" / "digits_elastic.py"


@pytest.fixture(scope="module")
def module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("digits_elastic", DAG_FILE)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture(params=["horovod", "by_torch"], scope="module")
def dag(module: ModuleType, request: pytest.FixtureRequest) -> Any:
    return getattr(module, request.param)


def test_more_and_reclaim_run_beside_the_training_and_evaluate_after_it(dag: Any) -> None:
    assert {task.task_id: task.upstream_task_ids for task in dag.tasks} == {
        "prepare": set(),
        "train": {"prepare"},
        "more": {"prepare"},
        "reclaim": {"more"},
        "release": {"reclaim"},
        "evaluate": {"train"},
    }


def test_it_survives_the_way_through_the_database(dag: Any) -> None:
    read = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    assert set(read.task_ids) == set(dag.task_ids)


def test_every_parameter_has_a_type_bounds_and_a_description(dag: Any) -> None:
    for name in dag.params:
        param = dag.params.get_param(name)
        schema = param.schema
        assert param.description, name
        assert schema["type"] in ("string", "integer", "number", "boolean"), name
        if schema["type"] in ("integer", "number"):
            assert "maximum" in schema, name
            assert "minimum" in schema or "exclusiveMinimum" in schema, name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("min_workers", 0),
        ("epochs", 0),
        ("batch_size", "64"),
        ("learning_rate", 0),
        ("min_accuracy", 1.1),
        ("folder", "relative/path"),
        ("reclaim", "yes"),
    ],
)
def test_a_bad_parameter_is_refused(dag: Any, name: str, value: object) -> None:
    with pytest.raises(ValueError, match="Failed validating"):
        dag.params.get_param(name).resolve(value)


def test_the_drill_is_left_out_when_the_parameter_is_off(module: ModuleType) -> None:
    module.skip_unless_reclaim({"params": {"reclaim": True}})
    with pytest.raises(AirflowSkipException, match="reclaim"):
        module.skip_unless_reclaim({"params": {"reclaim": False}})


def test_training_goes_on_whatever_became_of_the_resizes(dag: Any, tmp_path: Path) -> None:
    release = dag.get_task("release")
    assert release.trigger_rule == "all_done"
    release.python_callable(str(tmp_path / "run" / "released"))
    assert (tmp_path / "run" / "released").exists()
    held = dag.get_task("train").command[-1]
    context = {"params": dag.params.dump() | {"hold": False}, "run_id": "manual__1", "ti": None}
    assert release.render_template(held, context) == "--hold-until="


def test_the_training_gets_the_parameters_and_a_folder_of_its_own_run(dag: Any) -> None:
    train = dag.get_task("train")
    context = {"params": dag.params.dump(), "run_id": "manual__1", "ti": None}
    rendered = [train.render_template(word, context) for word in train.command]
    folder = f"{dag.params['folder']}/manual__1"
    assert rendered[0] == "python"
    assert rendered[1] == f"{folder}/code/digits_train.py"
    assert f"--shards={folder}/shards" in rendered
    assert f"--ledger={folder}/ledger" in rendered
    assert f"--engine={train.engine}" in rendered
    assert "--seed=0" in rendered
    assert f"--hold-until={folder}/released" in rendered
    workers = train.render_template(train.workers, context).spec()
    assert (workers.minimum, workers.start, workers.maximum) == (1, 2, 3)


def test_the_code_travels_whole(tmp_path: Path) -> None:
    copy_code(tmp_path / "code")
    copy_code(tmp_path / "code")  # As a second try of the task does.
    copied = {path.relative_to(tmp_path / "code").as_posix() for path in (tmp_path / "code").rglob("*.py")}
    package = DAG_FILE.parent / "digits"
    assert copied == {"digits_train.py", *(f"digits/{path.name}" for path in package.glob("*.py"))}
