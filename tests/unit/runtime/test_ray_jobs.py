"""What is asked of Ray, and what it tells."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.errors import ClusterUnavailable, InvalidDocument, InvalidSettings
from elastic_runtime.ray import client
from elastic_runtime.ray.client import TOKEN, RayJobs
from elastic_runtime.ray.credentials import (
    credentials_file,
    read_credentials,
    remove_credentials,
    write_credentials,
)
from elastic_runtime.ray.jobs import RaySpec, job_id, lacking, read_jobs, shown_as, submission, why_pending
from elastic_runtime.run.jobs import LAUNCHER, JobState
from elastic_runtime.run.spec import RunSpec, WorkersSpec

RUN = RunSpec("digits", "0123456789abcdef", ("true",), WorkersSpec(1, 2, 3))
SPEC = RaySpec("/venv/bin/python", {"num_cpus": 2}, {"resources": {"head": 1}}, {"env_vars": {"A": "1"}})


def asked(spec: RaySpec = SPEC) -> dict[str, Any]:
    return submission(spec, RUN, Path("/shared/my runs/digits"), Path("/shared/my runs/digits/log"))


def test_a_launcher_is_submitted_with_what_it_needs() -> None:
    assert asked() == {
        "submission_id": "digits-0123456789ab",
        "entrypoint": (
            "exec /venv/bin/python -m elastic_runtime.launcher '/shared/my runs/digits' "
            ">>'/shared/my runs/digits/log' 2>&1"
        ),
        "runtime_env": {"env_vars": {"A": "1", "RAY_JOB_STOP_WAIT_TIME_S": "60"}},
        "metadata": {
            "elastic_training_run": RUN.uid,
            "elastic_training_part": LAUNCHER,
            "name": "digits",
        },
        "entrypoint_resources": {"head": 1},
    }


def test_what_ray_shows_names_the_task_and_its_page() -> None:
    shown = {"dag_id": "digits", "task_id": "train", "run_id": "manual", "page": "https://airflow/task"}
    metadata = asked(replace(SPEC, shown={**shown, "name": "another"}))["metadata"]
    assert metadata == {**shown, **asked()["metadata"]}, "what we read ourselves is not replaced"
    assert shown_as("worker-0", shown) == "worker-0 of digits.train, run manual: https://airflow/task"
    assert shown_as("worker-0", {**shown, "page": ""}) == "worker-0 of digits.train, run manual"
    assert shown_as("worker-0", {}) == "worker-0"


def test_credentials_are_in_a_file_of_this_user_alone_until_they_are_removed(tmp_path: Path) -> None:
    assert (read_credentials(tmp_path), credentials_file(tmp_path)) == ({}, "")
    write_credentials(tmp_path, {})
    assert list(tmp_path.iterdir()) == []
    write_credentials(tmp_path, {"SECRET": "x"})
    file = Path(credentials_file(tmp_path))
    assert file.stat().st_mode & 0o777 == 0o600
    assert read_credentials(tmp_path) == {"SECRET": "x"}
    remove_credentials(tmp_path)
    remove_credentials(tmp_path)
    assert read_credentials(tmp_path) == {}


@pytest.mark.parametrize("text", ["", "[]", '{"A": 1}', "\xff"])
def test_a_file_that_has_no_credentials_is_told(text: str, tmp_path: Path) -> None:
    write_credentials(tmp_path, {"A": "1"})
    Path(credentials_file(tmp_path)).write_text(text, encoding="latin-1")
    with pytest.raises(InvalidDocument):
        read_credentials(tmp_path)


def told(number: str, status: str, **more: Any) -> dict[str, Any]:
    metadata = {"elastic_training_run": "uid", "elastic_training_part": "launcher"}
    return {"submission_id": number, "status": status, "message": "why", "metadata": metadata, **more}


def test_reads_launchers_of_runs_and_leaves_out_other_jobs() -> None:
    answer = [
        told("a", "PENDING"),
        told("b", "RUNNING"),
        told("c", "STOPPED"),
        told("d", "FAILED"),
        told("e", "RUNNING", metadata=None),
        told("f", "RUNNING", metadata={"elastic_training_run": 3}),
        {"type": "DRIVER", "submission_id": None, "metadata": {}},
    ]
    states = [JobState.PENDING, JobState.RUNNING, JobState.OVER, JobState.OVER]
    assert [(job.id, job.state) for job in read_jobs(answer)] == list(zip("abcd", states, strict=True))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.sampled_from(["metadata", "status", "submission_id", "x"]), inner)
    ),
)


@given(JSON)
def test_any_answer_is_read_or_refused(answer: Any) -> None:
    try:
        assert list(read_jobs(answer)) == []
    except InvalidDocument:
        assert not isinstance(answer, list)


NODE = {"Alive": True, "Resources": {"CPU": 4.0, "spot": 2.0}, "Labels": {"zone": "a"}}


@pytest.mark.parametrize(
    ("demands", "words"),
    [
        ({"num_cpus": 4, "resources": {"spot": 1}}, ""),
        ({"num_cpus": 1, "num_gpus": 2}, "1 CPU, 2 GPU"),
        ({"num_cpus": 1, "resources": {"tpu": 8}}, "1 CPU, 8 tpu"),
        ({"num_cpus": 1, "label_selector": {"zone": "a"}}, ""),
        ({"num_cpus": 1, "label_selector": {"zone": "b"}}, "1 CPU, zone=b"),
        ({"num_cpus": 1, "label_selector": {"zone": "!b"}}, ""),
    ],
)
def test_what_no_node_has_is_named(demands: dict[str, Any], words: str) -> None:
    assert lacking([{**NODE, "Resources": {}}, NODE], demands) == words
    assert lacking([{**NODE, "Alive": False}], demands), "it is gone"


def test_waiting_may_always_help_and_the_remedy_is_named() -> None:
    words, hopeless = why_pending("no node has 8 tpu")
    assert words == (
        "Ray cannot place it: no node has 8 tpu. Ask for less in Ray(...), or add such a node to the cluster"
    )
    assert not hopeless


class Api:
    """Ray's API, played over HTTP."""

    def __init__(self) -> None:
        self.status, self.text = 200, "[]"
        self.asked: list[tuple[str, str, Any, str | None]] = []


@contextmanager
def played() -> Iterator[tuple[Api, RayJobs]]:
    api = Api()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            api.asked.append((self.command, self.path, body, self.headers.get("Authorization")))
            self.send_response(api.status)
            if api.status == 302:
                self.send_header("Location", "/elsewhere")
            self.end_headers()
            self.wfile.write(api.text.encode())

        do_POST = do_GET  # noqa: N815  # as the base class wants it

        def log_message(self, *_arguments: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield api, RayJobs(f"http://127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
            thread.join()


def test_a_job_is_submitted_listed_and_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, "secret")
    with played() as (api, client):
        client.submit(asked())
        api.text = json.dumps([told("a/b", "RUNNING")])
        assert [job.id for job in client.jobs()] == ["a/b"]
        client.stop("a/b")
        api.status = 404
        client.stop(job_id(RUN))
    assert [(method, path, token) for method, path, _, token in api.asked] == [
        ("POST", "/api/jobs/", "Bearer secret"),
        ("GET", "/api/jobs/", "Bearer secret"),
        ("POST", "/api/jobs/a%2Fb/stop", "Bearer secret"),
        ("POST", "/api/jobs/digits-0123456789ab/stop", "Bearer secret"),
    ]


def test_a_submission_whose_answer_was_lost_is_none_the_second_time() -> None:
    with played() as (api, client):
        api.status, api.text = 500, "Traceback\nValueError: Job with submission_id digits already exists."
        client.submit(asked())


@pytest.mark.parametrize(
    ("status", "text", "error", "words"),
    [
        (500, "Traceback\nRuntimeError: no head", ClusterUnavailable, "answers 500"),
        (400, "Traceback\nTypeError: memory must be an integer", InvalidSettings, "memory must be an integer"),
        (401, "no", InvalidSettings, "refuses access"),
        (302, "", ClusterUnavailable, "answers 302"),
        (404, "<html>", ClusterUnavailable, "does not answer as Ray's jobs API"),
    ],
)
def test_refusals_are_told(status: int, text: str, error: type[Exception], words: str) -> None:
    with played() as (api, client):
        api.status, api.text = status, text
        with pytest.raises(error, match=words):
            client.submit(asked())
        assert len(api.asked) == 1, "a redirection is not followed: a token is for one address"


@pytest.mark.parametrize(("status", "text"), [(200, "<html>"), (200, "{}"), (200, '"x"'), (404, "<html>"), (405, "")])
def test_another_server_is_told_with_what_to_write(status: int, text: str) -> None:
    with played() as (api, client):
        api.status, api.text = status, text
        with pytest.raises(ClusterUnavailable) as caught:
            client.jobs()
    assert f"{client.address} does not answer as Ray's jobs API (" in str(caught.value)
    assert "Write HOST:PORT of Ray's dashboard" in str(caught.value)


def test_an_outage_is_told() -> None:
    with pytest.raises(ClusterUnavailable, match="does not answer"):
        RayJobs("http://127.0.0.1:1").jobs()


@pytest.mark.parametrize("token", ["a\nb", "ü😀"])
def test_a_token_that_cannot_be_sent_is_in_no_message(monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    monkeypatch.setenv(TOKEN, token)
    with pytest.raises(ClusterUnavailable, match="does not answer") as caught:
        RayJobs("http://127.0.0.1:1").jobs()
    said = f"{caught.value} {caught.value.__cause__}"
    assert token not in said
    assert "Bearer" not in said, "as a header is quoted"


@pytest.mark.parametrize("status", [200, 500])
def test_an_answer_that_has_no_end_is_not_read(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    monkeypatch.setattr(client, "_LONGEST_ANSWER", 1000)
    with played() as (api, jobs):
        api.status, api.text = status, " " * 1001
        with pytest.raises(ClusterUnavailable, match="answers more than can be read"):
            jobs.jobs()
