"""Client of Ray's API of jobs. Everything blocks."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import HTTPRedirectHandler, Request, build_opener

from elastic_runtime.documents import parse_json
from elastic_runtime.errors import ClusterUnavailable, InvalidDocument, InvalidSettings
from elastic_runtime.printable import printable
from elastic_runtime.ray.jobs import read_jobs
from elastic_runtime.run.jobs import Job

TIMEOUT = 30.0
"""Seconds for an answer."""
TOKEN = "RAY_AUTH_TOKEN"  # noqa: S105  # a variable's name
"""Variable with the token of a cluster that wants one, as Ray's own client reads it."""
_LONGEST_ANSWER = 64 << 20
"""Bytes."""
_NOT_THERE = (404, 405, 501)
"""Answers of a server that has no such API."""


class _NoRedirect(HTTPRedirectHandler):
    """A token is for the address that was named, and no other."""

    def redirect_request(self, *_arguments: object) -> None:
        return None


class RayJobs:
    """Methods raise ClusterUnavailable where Ray does not answer, and InvalidSettings where it refuses.

    Args:
        address: ``http://HOST:PORT`` of Ray's dashboard.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._opener = build_opener(_NoRedirect)

    def submit(self, request: Mapping[str, Any]) -> None:
        """Submit a job, unless there is one of its id already."""
        status, text = self._call("POST", "/api/jobs/", request)
        if status == 200 or "already exists" in text:
            return
        if status in _NOT_THERE:
            raise self._other(f"status {status}")
        said = printable(text.strip().splitlines()[-1] if text.strip() else "", 300)
        if status in (400, 422):
            raise InvalidSettings("ray", f"Ray says: {said}", "Correct it, or ask those who look after the cluster")
        raise ClusterUnavailable(f"Ray at {self.address} answers {status}: {said}")

    def jobs(self) -> list[Job]:
        """Jobs of all runs, with those that have ended."""
        status, text = self._call("GET", "/api/jobs/")
        if status in _NOT_THERE:
            raise self._other(f"status {status}")
        if status != 200:
            raise ClusterUnavailable(f"Ray at {self.address} answers {status}: {printable(text, 300)}")
        try:
            return list(read_jobs(parse_json(text)))
        except InvalidDocument as error:
            raise self._other(str(error)) from error

    def stop(self, job: str) -> None:
        """End a job, with SIGTERM first; no harm where it has ended."""
        self._call("POST", f"/api/jobs/{quote(job, safe='')}/stop", {})

    def _other(self, why: str) -> ClusterUnavailable:
        return ClusterUnavailable(
            f"{self.address} does not answer as Ray's jobs API ({why}). Write HOST:PORT of Ray's dashboard, whose port "
            "is 8265 unless the cluster says otherwise"
        )

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, str]:
        headers = {"Content-Type": "application/json"}
        if token := os.environ.get(TOKEN):
            headers["Authorization"] = f"Bearer {token}"
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.address + path, data, headers, method=method)  # noqa: S310  # http, as names are parsed
        try:
            try:
                with self._opener.open(request, timeout=TIMEOUT) as answer:
                    status, said = answer.status, answer.read(_LONGEST_ANSWER + 1)
            except HTTPError as error:
                status, said = error.code, error.read(_LONGEST_ANSWER + 1)
        except (OSError, HTTPException, ValueError) as error:
            raise ClusterUnavailable(f"Ray at {self.address} does not answer: {printable(error, 200)}") from error
        if len(said) > _LONGEST_ANSWER:
            raise ClusterUnavailable(f"Ray at {self.address} answers more than can be read")
        if status in (401, 403):
            remedy = f"Set {TOKEN} to the cluster's token where Airflow's workers and triggerers run"
            raise InvalidSettings("cluster", f"Ray at {self.address} refuses access ({status})", remedy)
        return status, said.decode(errors="replace")
