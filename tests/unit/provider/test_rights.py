"""deploy/rbac.yaml: enough for what is created, and nothing beyond what is called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from elastic_runtime.kubernetes.resources import kind_of
from elastic_runtime.launcher.kubernetes.growing import RIGHTS
from elastic_runtime.run.spec import RunSpec
from elastic_training.clusters.kubernetes.manifests.objects import run_objects
from elastic_training.settings import Pods
from elastic_training.settings.pods import LAUNCHER_ACCOUNT

FOLDER = Path(__file__).parents[3] / "deploy"
FILES = {name: (FOLDER / name).read_text() for name in ("rbac.yaml", "rbac-nodes.yaml")}
DOCUMENTS = [document for text in FILES.values() for document in yaml.safe_load_all(text) if document]
ROLES: dict[str, dict[str, Any]] = {
    each["metadata"]["name"]: each for each in DOCUMENTS if each["kind"] in ("Role", "ClusterRole")
}


def rights(role: str) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in ROLES[role]["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_airflow_may_create_every_object_of_a_run() -> None:
    granted = rights("elastic-training-airflow")
    spec = RunSpec(name="run", uid="uid", command=("python",))
    for manifest in run_objects(spec, "me", Pods(image="trainer:1"), namespace="training").all():
        kind = kind_of(manifest)
        group = "" if kind.group == "/api/v1" else kind.group.removeprefix("/apis/").rpartition("/")[0]
        assert (group, kind.plural, "create") in granted


@pytest.mark.parametrize("role", ROLES)
def test_nobody_reads_secrets_makes_pods_or_grants_rights(role: str) -> None:
    for group, resource, verb in rights(role):
        assert "*" not in (group, resource, verb)
        assert group != "rbac.authorization.k8s.io"
        assert (resource, verb) not in {("secrets", "get"), ("secrets", "list"), ("secrets", "watch")}
        assert resource not in ("pods/exec", "pods/attach", "pods/portforward", "serviceaccounts/token")
        assert resource != "pods" or verb in ("get", "list", "watch", "delete")


def test_launchers_write_configmaps_and_sizes_delete_pods_and_nothing_else() -> None:
    reading = {"get", "list", "watch"}
    writing = {(resource, verb) for _, resource, verb in rights("elastic-training-launcher") if verb not in reading}
    assert writing == {
        ("configmaps", "patch"), ("configmaps", "delete"), ("replicasets/scale", "patch"), ("pods", "delete"),
    }  # fmt: skip


def test_what_growing_memory_needs_is_granted() -> None:
    documents = [*DOCUMENTS, *yaml.safe_load_all((FOLDER / "rbac-grow-memory.yaml").read_text())]
    rules = [rule for each in documents if each["kind"] == "Role" and "airflow" not in each["metadata"]["name"]
             for rule in each["rules"]]  # fmt: skip
    assert {*RIGHTS, ("", "pods/resize", "patch")} <= {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_only_nodes_are_read_beyond_the_namespace() -> None:
    beyond = {name for name, role in ROLES.items() if role["kind"] == "ClusterRole"}
    assert beyond == {"elastic-training-nodes"}
    assert rights("elastic-training-nodes") == {("", "nodes", verb) for verb in ("list", "watch")}


def test_the_launchers_account_is_the_one_that_pods_name_and_has_its_role() -> None:
    (account,) = [each for each in DOCUMENTS if each["kind"] == "ServiceAccount"]
    (binding,) = [each for each in DOCUMENTS if each["kind"] == "RoleBinding"]
    assert account["metadata"]["name"] == LAUNCHER_ACCOUNT == binding["subjects"][0]["name"]
    assert binding["roleRef"]["name"] in ROLES


@pytest.mark.parametrize("file", FILES)
def test_each_rule_has_its_reason_beside_it(file: str) -> None:
    lines = FILES[file].splitlines()
    for index, line in enumerate(lines):
        if line.startswith("  - apiGroups:"):
            assert lines[index - 1].startswith("  # ")
