"""docker-compose.yml: by the Compose Specification, and against what it names of this repository and of Airflow."""

from __future__ import annotations

import ast
import json
import re
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml
from airflow.cli.cli_parser import get_parser
from airflow.configuration import conf
from compose_spec import PyOptions

from tests.compose import file

ROOT = Path(__file__).resolve().parents[3]
VALUES = dict.fromkeys(file.variables(), "0123456789abcdef")
SERVICES = file.services(VALUES)
AIRFLOW = {name: each for name, each in SERVICES.items() if each["image"] == "elastic-training/airflow:compose"}
COMPONENTS = ("migrate", "api-server", "scheduler", "dag-processor", "triggerer")
ENVIRONMENT: dict[str, str] = SERVICES["scheduler"]["environment"]


def connections() -> dict[str, dict[str, Any]]:
    prefix = "AIRFLOW_CONN_"
    return {key.removeprefix(prefix).lower(): json.loads(value) for key, value in ENVIRONMENT.items() if prefix in key}


def test_it_is_a_compose_file() -> None:
    PyOptions(apply_merge=True).from_yaml(file.text())


@pytest.mark.parametrize(
    ("right", "wrong"), [("privileged: true", "priviledged: true"), ("service_healthy", "healthy"), ("5s", "five")]
)
def test_one_that_is_none_is_refused(right: str, wrong: str) -> None:
    assert right in file.text()
    with pytest.raises(ValueError, match=r"x-|variant|duration"):
        PyOptions(apply_merge=True).from_yaml(file.text().replace(right, wrong))


def test_what_a_service_names_is_there() -> None:
    whole = yaml.safe_load(file.text())
    for name, each in SERVICES.items():
        assert set(each.get("depends_on", {})) <= SERVICES.keys(), name
        for volume in each.get("volumes", []):
            source = volume.split(":")[0]
            assert (ROOT / source).is_dir() if source.startswith(".") else source in whole["volumes"], (name, volume)
        healthy = {other for other, how in each.get("depends_on", {}).items() if how["condition"] == "service_healthy"}
        assert all("healthcheck" in SERVICES[other] for other in healthy), name


def test_who_is_waited_for_to_complete_is_not_started_again() -> None:
    for each in SERVICES.values():
        for other, how in each.get("depends_on", {}).items():
            completes = how["condition"] == "service_completed_successfully"
            assert (SERVICES[other]["restart"] == "no") == completes, other


def test_nothing_is_reached_from_other_machines() -> None:
    ports = [port for each in SERVICES.values() for port in each.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)
    assert [name for name, each in SERVICES.items() if each.get("privileged")] == ["kubernetes"]


def test_every_password_is_of_this_machine() -> None:
    written = re.findall(r"^\s+for name in (.*); do$", (ROOT / "tools" / "compose").read_text(), re.MULTILINE)
    assert {*written[0].split(), "FERNET_KEY"} == file.variables()
    for name, value in ENVIRONMENT.items():
        if re.search("SECRET|FERNET|SQL_ALCHEMY", name):
            assert VALUES["FERNET_KEY"] in value, name


@pytest.mark.parametrize("name", [name for name in ENVIRONMENT if name.startswith("AIRFLOW__")])
def test_every_setting_is_one_of_airflow(name: str) -> None:
    section, key = name.removeprefix("AIRFLOW__").lower().split("__")
    assert key in conf.configuration_description[section]["options"]


@pytest.mark.parametrize("service", COMPONENTS)
def test_every_command_is_one_of_airflow(service: str) -> None:
    get_parser().parse_args(AIRFLOW[service]["command"])


def test_the_examples_connection_leads_to_the_others() -> None:
    names = connections()
    extra = names["training"]["extra"]
    assert {extra["kubernetes_conn_id"], extra["checkpoint_conn_id"]} < names.keys()
    assert extra["image"] == SERVICES["trainer"]["image"]
    bucket = " ".join(SERVICES["bucket"]["command"])
    assert f'Bucket="{extra["checkpoint_uri"].split("/")[2]}"' in bucket
    assert names["s3"]["extra"]["endpoint_url"] in bucket
    namespace = SERVICES["namespace"]["command"][0]
    assert f"namespace {extra['namespace']}" in namespace
    assert f"AWS_ENDPOINT_URL_S3={names['s3']['extra']['endpoint_url']} " in namespace
    for example in (ROOT / "dags" / "examples").glob("*.py"):
        clusters = {
            word.value.value
            for word in ast.walk(ast.parse(example.read_text()))
            if isinstance(word, ast.keyword) and word.arg == "cluster" and isinstance(word.value, ast.Constant)
        }
        # A template is of Slurm, of which there is none here.
        named = {str(each).split("/")[0] for each in clusters if "{{" not in str(each)}
        assert named <= names.keys(), example.name


def test_the_s3_server_is_where_pods_look_for_it() -> None:
    [config] = yaml.safe_load(file.text())["networks"]["default"]["ipam"]["config"]
    address = SERVICES["s3"]["networks"]["default"]["ipv4_address"]
    assert ip_address(address) in ip_network(config["subnet"])
    port = SERVICES["s3"]["command"][-1]
    assert connections()["s3"]["extra"]["endpoint_url"] == f"http://{address}:{port}"


def test_versions_are_those_that_are_tested() -> None:
    lock = (ROOT / "requirements" / "airflow.txt").read_text()
    airflow, moto = (re.search(rf"^{name}==(\S+)", lock, re.MULTILINE) for name in ("apache-airflow", "moto"))
    assert airflow
    assert moto
    assert f"FROM apache/airflow:{airflow[1]}-python3.11" in AIRFLOW["scheduler"]["build"]["dockerfile_inline"]
    assert f"=={moto[1]}'" in SERVICES["s3"]["build"]["dockerfile_inline"]
