"""What is asked of slurmrestd, and what is made of its answers. tests/slurm asks a real one."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from elastic_runtime.errors import ClusterUnavailable, InvalidSettings
from elastic_runtime.run.jobs import LAUNCHER, Job, JobState
from elastic_runtime.run.spec import RunSpec, WorkersSpec
from elastic_runtime.slurm.jobs import SlurmSpec, options
from elastic_runtime.slurm.rest import RestAccess, RestJobs, properties

RUN = RunSpec("digits-train-0a", "uid1", ("true",), WorkersSpec(1, 2, 3))
TOKEN = "planted.token"


def test_all_options_of_a_launcher_have_their_property() -> None:
    spec = SlurmSpec("python", launcher_options=("--partition=cpu", "--mem=2G", "--time=90", "--nice=3"), grace=40.0)
    made = properties(options(spec, RUN, LAUNCHER, Path("/shared/run/log")), {})
    assert made == {
        "partition": "cpu",
        "memory_per_node": 2048,
        "time_limit": 90,
        "nice": 3,
        "name": "digits-train-0a",
        "comment": "elastic-training uid1 launcher",
        "nodes": [1, 1],
        "tasks": 1,
        "no_requeue": True,
        "signal": "TERM@40",
        "standard_output": "/shared/run/log",
        "open_mode": "append",
        "current_working_directory": "/shared/run",
        "get_user_environment": "10L",
        "environment": {"PATH": "/usr/local/bin:/usr/bin:/bin"},
    }


def test_only_variables_that_are_exported_are_passed_on() -> None:
    made = properties(["--export=NIL,A"], {"A": "1", "B": "2"})
    assert made["environment"].keys() == {"PATH", "A"}


@pytest.mark.parametrize("option", ["--exclude=n7", "--time=1-0", "--mem=much", "--no-kill"])
def test_an_option_without_a_property_is_refused(option: str) -> None:
    with pytest.raises(InvalidSettings, match=r"slurm\.launcher_options.*slurmrestd has no"):
        properties([option], {})


@contextmanager
def answering(status: int, body: str, headers: dict[str, str] | None = None) -> Iterator[tuple[RestJobs, list[Any]]]:
    """A client of a server that always answers so, and the requests that it has got."""
    seen: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append((self.command, self.path, self.headers))
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body.encode())

        do_POST = do_DELETE = do_GET  # noqa: N815  # names of the base class

        def log_message(self, *_arguments: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield RestJobs(RestAccess(f"http://127.0.0.1:{server.server_port}", "me", TOKEN)), seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def told(**changes: Any) -> dict[str, Any]:
    job = {"job_id": 7, "job_state": "RUNNING", "end_time": 0, "nodes": "n1", "state_reason": "None", "name": "run"}
    return {**job, "comment": "elastic-training uid1 worker-0", "user_name": "me", **changes}


def test_jobs_of_others_and_of_no_run_are_left_out() -> None:
    jobs = [told(), told(job_id=8, user_name="you"), told(job_id=9, comment="mine"), told(job_id=10, name="b"), "?"]
    with answering(200, json.dumps({"jobs": jobs})) as (client, seen):
        assert [job.id for job in client.jobs()] == ["7", "10"]
        assert [job.id for job in client.jobs("b")] == ["10"]
    _, path, headers = seen[0]
    assert path == "/slurm/v0.0.38/jobs"
    assert (headers["X-SLURM-USER-NAME"], headers["X-SLURM-USER-TOKEN"]) == ("me", TOKEN)


def test_a_job_is_read_as_that_of_squeue() -> None:
    with answering(200, json.dumps({"jobs": [told(job_state="PENDING", nodes="", state_reason="Priority")]})) as (
        client, _,
    ):  # fmt: skip
        [job] = client.jobs()
    assert (job.state, job.reason, job.end and job.end.timestamp()) == (JobState.PENDING, "Priority", None)
    assert isinstance(job, Job)


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (200, "no JSON", "does not answer as slurmrestd"),
        (404, "[]", "does not answer as slurmrestd with /slurm/v0.0.38: status 404"),
        (200, '{"jobs": 3}', "without a reason"),
        (401, "Authentication failure", "refuses the token of me: write another one"),
        (500, '{"errors": [{"description": "Failed", "error": "Unspecified error"}]}', "Unspecified error"),
    ],
)
def test_other_answers_are_an_outage_that_says_what_it_is(status: int, body: str, words: str) -> None:
    with answering(status, body) as (client, _), pytest.raises(ClusterUnavailable, match=words):
        client.jobs()


def test_a_job_that_is_over_is_ended_without_an_error() -> None:
    over = {"errors": [{"error_number": 2017, "error": "Invalid job id specified"}]}
    with answering(500, json.dumps(over)) as (client, seen):
        client.cancel(["8", "7", "7"])
    assert [(method, path) for method, path, _ in seen] == [
        ("DELETE", "/slurm/v0.0.38/job/7"),
        ("DELETE", "/slurm/v0.0.38/job/8"),
    ]


def test_a_job_that_cannot_be_ended_is_told_of() -> None:
    refused = {"errors": [{"error_number": 2010, "error": "Access denied"}]}
    with answering(500, json.dumps(refused)) as (client, _), pytest.raises(ClusterUnavailable, match="Access denied"):
        client.cancel(["7"])


def test_what_will_never_be_accepted_is_a_setting() -> None:
    refused = {"errors": [{"error_code": 2000, "error": "Invalid partition name specified"}]}
    with answering(500, json.dumps(refused)) as (client, _), pytest.raises(InvalidSettings, match="Invalid partition"):
        client.submit(["--partition=nowhere"], "#!/bin/sh\n")


def test_a_token_goes_to_no_other_address() -> None:
    with answering(200, '{"jobs": []}') as (other, seen):
        elsewhere = {"Location": other.address}
        with answering(302, "{}", elsewhere) as (client, _), pytest.raises(ClusterUnavailable):
            client.jobs()
        assert seen == []


@pytest.mark.parametrize("token", ["a\nb", "ü😀"])
def test_a_token_that_cannot_be_sent_is_in_no_message(token: str) -> None:
    access = RestAccess("http://127.0.0.1:1", "me", token)
    with pytest.raises(ClusterUnavailable) as caught:
        RestJobs(access).jobs()
    assert token not in f"{caught.value} {caught.value.__cause__} {access!r}"
