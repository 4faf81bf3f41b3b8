from __future__ import annotations

import importlib
import json
import pkgutil
from importlib.resources import files

import jsonschema
import pytest
import yaml
from airflow.cli.cli_parser import get_parser

from elastic_training.get_provider_info import get_provider_info
from elastic_training.operators.elastic_horovod import ElasticHorovodOperator
from registry_entry import entry


def test_airflow_accepts_the_metadata() -> None:
    schema = json.loads(files("airflow").joinpath("provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


def test_a_registry_of_providers_accepts_its_entry() -> None:
    schema = json.loads(files("airflow").joinpath("provider.yaml.schema.json").read_text())
    made = yaml.safe_load(yaml.safe_dump(entry(get_provider_info(), "1.2.3", 1700000000)))
    jsonschema.validate(made, schema)
    assert made["versions"] == ["1.2.3"]
    assert made["operators"] == get_provider_info()["operators"]


def test_every_module_named_exists() -> None:
    info = get_provider_info()
    for kind in ("hooks", "operators", "sensors", "triggers"):
        for module in info[kind][0]["python-modules"]:
            importlib.import_module(module)


def test_the_decorator_that_is_named_exists() -> None:
    for decorator in get_provider_info()["task-decorators"]:
        assert callable(pkgutil.resolve_name(decorator["class-name"]))


def test_the_form_is_as_airflow_wants_it_in_a_providers_sources() -> None:
    """The schema of the metadata itself says nothing of a form's fields."""
    schema = json.loads(files("airflow").joinpath("provider.yaml.schema.json").read_text())
    forms = schema["properties"]["connection-types"]
    jsonschema.validate(get_provider_info()["connection-types"], forms | {"definitions": schema.get("definitions", {})})


def test_the_hook_of_the_connection_type_exists_and_is_of_it() -> None:
    for told in get_provider_info()["connection-types"]:
        hook = pkgutil.resolve_name(told["hook-class-name"])
        assert (hook.conn_type, hook.hook_name) == (told["connection-type"], told["hook-name"])


def test_every_link_that_an_operator_has_is_named() -> None:
    """Airflow 2 makes no other from a serialised DAG."""
    named = {pkgutil.resolve_name(each) for each in get_provider_info()["extra-links"]}
    assert named == {type(link) for link in ElasticHorovodOperator.operator_extra_links}


@pytest.mark.parametrize("asked", ["list", "hooks", "links", "triggers", "get airflow-provider-elastic-training"])
def test_airflows_command_line_lists_it(asked: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = get_parser()
    arguments = parser.parse_args(["providers", *asked.split(), "--output", "plain"])
    arguments.func(arguments)
    assert "elastic_training" in capsys.readouterr().out.replace("-", "_")


def test_every_operator_sensor_and_trigger_is_named() -> None:
    info, package = get_provider_info(), files("elastic_training")
    for kind in ("operators", "sensors", "triggers"):
        sources = {each.name: each.read_text() for each in package.joinpath(kind).iterdir() if each.name[-3:] == ".py"}
        ours = ("BaseOperator)", "ElasticTrainingOperator)", "RestartableOperator)", "ScaleTrainingOperator)")
        bases = (*ours, "HITLBranchOperator)", "BaseSensorOperator)", "BaseTrigger)", "BaseEventTrigger)")
        tasks = {name[:-3] for name, source in sources.items() if any(base in source for base in bases)}
        assert {module.rpartition(".")[2] for module in info[kind][0]["python-modules"]} == tasks
