"""The test button of a connection, on a real API server: with all rights, without some, and where nothing is."""

from __future__ import annotations

import json

import pytest

from elastic_training.hooks.elastic_training import ElasticTrainingHook
from tests.kubernetes.wires import as_account
from tests.kubernetes_namespace import CONNECTION, Namespace

ACCOUNT = "nobody"


def pressed(monkeypatch: pytest.MonkeyPatch, connection: str, namespace: str) -> tuple[bool, str]:
    extra = {"kubernetes_conn_id": connection, "namespace": namespace}
    monkeypatch.setenv("AIRFLOW_CONN_SITE", json.dumps({"conn_type": "elastic_training", "extra": extra}))
    return ElasticTrainingHook("site").test_connection()


def test_who_may_do_all_has_a_good_connection(namespace: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    before = namespace.kubectl("get", "configmaps", "--output=name")
    good, words = pressed(monkeypatch, CONNECTION, namespace.name)
    assert good, words
    assert f"all rights in namespace {namespace.name}" in words
    assert namespace.kubectl("get", "configmaps", "--output=name") == before


def test_who_may_do_nothing_is_told_what_is_missing(namespace: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    namespace.kubectl("create", "serviceaccount", ACCOUNT)
    try:
        with as_account(namespace, ACCOUNT) as connection:
            good, words = pressed(monkeypatch, connection, namespace.name)
    finally:
        namespace.kubectl("delete", f"serviceaccount/{ACCOUNT}")
    assert not good
    assert "create, get, list, watch, delete jobs.batch" in words
    assert "deploy/rbac.yaml" in words


def test_a_namespace_that_is_not_there_is_named(namespace: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    good, words = pressed(monkeypatch, CONNECTION, "no-such-namespace")
    assert not good
    assert '"no-such-namespace" not found' in words
