"""Client of Ray's API of jobs. Everything blocks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from elastic_runtime.documents import parse_json
from elastic_runtime.errors import ClusterUnavailable, InvalidDocument, InvalidSettings
from elastic_runtime.net.http_api import HttpApi
from elastic_runtime.printable import printable
from elastic_runtime.ray.jobs import read_jobs
from elastic_runtime.run.jobs import Job

TOKEN = "RAY_AUTH_TOKEN"  # noqa: S105  # a variable's name
"""Variable with the token of a cluster that wants one, as Ray's own client reads it."""
_LONGEST_ANSWER = 64 << 20
"""Bytes."""
_NOT_THERE = (404, 405, 501)
"""Answers of a server that has no such API."""


class RayJobs:
    """Methods raise ClusterUnavailable where Ray does not answer, and InvalidSettings where it refuses.

    Args:
        address: ``http://HOST:PORT`` of Ray's dashboard.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._api = HttpApi("Ray", address, _LONGEST_ANSWER)

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
        raise ClusterUnavailable(f"{self._api} answers {status}: {said}")

    def jobs(self) -> list[Job]:
        """Jobs of all runs, with those that have ended."""
        status, text = self._call("GET", "/api/jobs/")
        if status in _NOT_THERE:
            raise self._other(f"status {status}")
        if status != 200:
            raise ClusterUnavailable(f"{self._api} answers {status}: {printable(text, 300)}")
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
        token = os.environ.get(TOKEN)
        status, said = self._api.call(method, path, {"Authorization": f"Bearer {token}"} if token else {}, body)
        if status in (401, 403):
            remedy = f"Set {TOKEN} to the cluster's token where Airflow's workers and triggerers run"
            raise InvalidSettings("cluster", f"{self._api} refuses access ({status})", remedy)
        return status, said
