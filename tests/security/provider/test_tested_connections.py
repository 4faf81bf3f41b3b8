"""Whoever presses a connection's test button learns no secret of it, and waits in vain for nothing."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from elastic_training.hooks import checks
from elastic_training.hooks.elastic_training import ElasticTrainingHook
from tests.unit.provider.api_server import TOKEN, ApiServer, kubeconfig, served


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with served() as extra:
        connected(monkeypatch, "cloud", "kubernetes", **extra)
        connected(monkeypatch, "site", kubernetes_conn_id="cloud", namespace="training")
        yield


def connected(monkeypatch: pytest.MonkeyPatch, name: str, kind: str = "elastic_training", **extra: Any) -> None:
    monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps({"conn_type": kind, "extra": extra}))


def pressed() -> tuple[bool, str]:
    return ElasticTrainingHook("site").test_connection()


@pytest.mark.parametrize(
    "said",
    [
        json.dumps({"kind": "Status", "message": f"no such token: {TOKEN}"}),
        f"<html>{TOKEN}\n\x1b[31m::group::</html>",
    ],
)
def test_a_server_that_repeats_the_token_does_not_show_it(cloud: None, said: str) -> None:
    ApiServer.answer = (422, said.encode())
    good, words = pressed()
    assert not good
    assert TOKEN not in words
    assert not {"\n", "\x1b"} & set(words)


@pytest.mark.parametrize("users", [[], [{"name": "me", "user": {"token": TOKEN}}]])
def test_a_url_with_a_password_does_not_show_it(monkeypatch: pytest.MonkeyPatch, users: list[Any]) -> None:
    config = kubeconfig(f"http://user:{TOKEN}@127.0.0.1:1") | {"users": users or [{"name": "me", "user": {}}]}
    connected(monkeypatch, "cloud", "kubernetes", kube_config=json.dumps(config))
    connected(monkeypatch, "site", kubernetes_conn_id="cloud")
    good, words = pressed()
    assert not good
    assert TOKEN not in words


def test_a_checkpoint_uri_with_a_password_is_refused_unquoted(cloud: None, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = f"s3://user:{TOKEN}@bucket/runs"
    connected(monkeypatch, "site", kubernetes_conn_id="cloud", namespace="training", checkpoint_uri=uri)
    good, words = pressed()
    assert not good
    assert "credentials" in words
    assert TOKEN not in words


def test_a_store_that_does_not_answer_keeps_nobody_waiting(cloud: None, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    monkeypatch.setattr(checks, "TEST_TIMEOUT", 0.5)
    monkeypatch.setattr(checks, "_look_into", lambda *_: answers.wait(30))
    connected(monkeypatch, "site", kubernetes_conn_id="cloud", namespace="training", checkpoint_uri="s3://bucket/runs")
    began = time.monotonic()
    good, words = pressed()
    assert not good
    assert "more than 0.5 s" in words
    assert time.monotonic() < began + 20
    answers.set()


@pytest.mark.parametrize("answer", [b"[]", b"{}", b'{"status": null}', b'{"status": {"allowed": "true"}}'])
def test_an_answer_that_is_none_gives_no_right_and_fails_in_words(cloud: None, answer: bytes) -> None:
    ApiServer.answer = (201, answer)
    good, words = pressed()
    assert not good
    assert words
