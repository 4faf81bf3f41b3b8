from __future__ import annotations

import importlib
import json
from importlib.resources import files

import jsonschema

from elastic_training.get_provider_info import get_provider_info


def test_airflow_accepts_the_metadata() -> None:
    schema = json.loads(files("airflow").joinpath("provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


def test_every_module_named_exists() -> None:
    info = get_provider_info()
    for kind in ("operators", "sensors", "triggers"):
        for module in info[kind][0]["python-modules"]:
            importlib.import_module(module)


def test_every_operator_sensor_and_trigger_is_named() -> None:
    info, package = get_provider_info(), files("elastic_training")
    for kind in ("operators", "sensors", "triggers"):
        sources = {each.name: each.read_text() for each in package.joinpath(kind).iterdir() if each.name[-3:] == ".py"}
        bases = ("BaseOperator)", "BaseSensorOperator)", "BaseTrigger)")
        tasks = {name[:-3] for name, source in sources.items() if any(base in source for base in bases)}
        assert {module.rpartition(".")[2] for module in info[kind][0]["python-modules"]} == tasks
