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
