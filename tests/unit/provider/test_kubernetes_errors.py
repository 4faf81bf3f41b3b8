"""What the API server answers, and what becomes of it."""

from __future__ import annotations

import json

import pytest

from elastic_runtime.errors import (
    ClusterUnavailable,
    Conflict,
    ElasticError,
    InvalidSettings,
    MissingRight,
    PermanentError,
    RunNotFound,
    WatchExpired,
)
from elastic_runtime.kubernetes.errors import AlreadyExists, translate
from elastic_training.clusters.kubernetes.access import read_access


def answer(code: int, message: str = "words", reason: str = "") -> ElasticError:
    return translate(code, json.dumps({"kind": "Status", "reason": reason, "message": message}), "create jobs x")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (401, ClusterUnavailable),
        (404, RunNotFound),
        (409, Conflict),
        (410, WatchExpired),
        (422, InvalidSettings),
        (429, ClusterUnavailable),
        (500, ClusterUnavailable),
        (503, ClusterUnavailable),
        (504, ClusterUnavailable),
    ],
)
def test_each_answer_has_its_error(code: int, kind: type[ElasticError]) -> None:
    error = answer(code)
    assert type(error) is kind
    assert "cannot create jobs x: words" in str(error)


def test_a_namespace_that_is_not_there_is_no_run_that_went() -> None:
    error = answer(404, 'namespaces "no-such" not found', "NotFound")
    assert type(error) is PermanentError
    assert 'namespaces "no-such" not found (404). Make it, or correct the namespace' in str(error)


def test_a_name_that_is_taken_is_told_apart() -> None:
    assert type(answer(409, reason="AlreadyExists")) is AlreadyExists


def test_a_missing_right_names_it_and_the_remedy() -> None:
    error = answer(
        403,
        'jobs.batch is forbidden: User "system:serviceaccount:airflow:worker" cannot create resource "jobs" in '
        'API group "batch" in the namespace "training"',
    )
    assert type(error) is MissingRight
    assert "Give system:serviceaccount:airflow:worker the right to create jobs: deploy/rbac.yaml" in str(error)


def test_a_full_quota_is_worth_another_try_of_the_task() -> None:
    error = answer(403, "exceeded quota: objects, requested: count/jobs.batch=1, used: …")
    assert type(error) is PermanentError
    assert "quota" in str(error)


@pytest.mark.parametrize("code", [400, 403])
def test_a_refusal_is_about_the_pods(code: int) -> None:
    error = answer(code, 'admission webhook "policy" denied the request: no')
    assert isinstance(error, InvalidSettings)
    assert error.field == "pods"
    assert "denied the request" in str(error)


def test_a_proxy_that_speaks_html_is_quoted() -> None:
    assert "Bad Gateway" in str(translate(502, "<html>\n Bad  Gateway</html>", "get pods"))


def test_a_connection_says_how_to_reach_the_cluster() -> None:
    access = read_access("c", {"kube_config": {"contexts": []}, "namespace": "ns", "disable_verify_ssl": "True"})
    assert (access.document, access.namespace, access.verify) == ('{"contexts": []}', "ns", False)
    assert read_access("c", {"extra__kubernetes__kube_config_path": "/x"}).path == "/x"
    assert read_access("c", {}).namespace == "default"


def test_a_connection_that_says_two_things_is_refused() -> None:
    with pytest.raises(InvalidSettings, match="more than one"):
        read_access("c", {"in_cluster": True, "kube_config_path": "/x"})
