"""Scripted runs whose launcher is a job of a real Ray, and whose workers are its actors."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import urlopen
from uuid import uuid4

from elastic_runtime.documents import to_json
from elastic_runtime.ray.client import RayJobs
from elastic_runtime.ray.credentials import write_credentials
from elastic_runtime.ray.jobs import SPEC, RaySpec, job_id, submission
from elastic_runtime.run.jobs import JobState
from tests.local.harness import ScriptedRun
from tests.paced import until

BIN = Path(__file__).resolve().parents[1] / ".venv-ray" / "bin"
WHOLE_NODE: dict[str, Any] = {"num_cpus": 4}


class RayRun(ScriptedRun):
    """A run in the Ray of ``tools/ray with``. Its launcher is on the head."""

    demands = WHOLE_NODE
    """Of a worker."""
    shown: dict[str, str] = {}  # noqa: RUF012  # read only
    credentials: dict[str, str] = {}  # noqa: RUF012  # read only

    def start(self) -> RayRun:
        self.jobs = RayJobs(f"http://{os.environ['RAY_LAB']}")
        # Ray keeps jobs that are over, and has none of the same id again.
        self.spec = replace(self.spec, uid=uuid4().hex)
        self.folder.create(self.spec, owner="test")
        path = {"env_vars": {"PYTHONPATH": os.pathsep.join(self._path)}}
        ray = RaySpec(str(BIN / "python"), self.demands, runtime_env=path, grace=20.0, shown=self.shown)
        (self.folder.path / SPEC).write_text(to_json(ray))
        write_credentials(self.folder.path, self.credentials)
        self.jobs.submit(submission(ray, self.spec, self.folder.path, self.folder.log))
        return self

    def is_over(self) -> bool:
        [job] = [job for job in self.jobs.jobs() if job.id == job_id(self.spec)]
        return job.state is JobState.OVER

    def end(self, max_wait: float | None = None) -> Any:
        self.until(self.is_over, "the launcher's job is over", max_wait, alive=False)
        status = self.status()
        assert status.phase.final, self.report("the launcher has ended without a final status")
        self.assert_nothing_left()
        return status

    def assert_nothing_left(self) -> None:
        super().assert_no_process(30.0)

    def close(self) -> None:
        self.jobs.stop(job_id(self.spec))
        until(self.is_over, "the launcher's job is over", 90.0)
        for process in self.processes():
            process.kill()

    def asked(self, path: str) -> Any:
        """Ray's answer, as its dashboard has it."""
        with urlopen(f"{self.jobs.address}{path}", timeout=30) as answer:
            return json.load(answer)

    def actor(self, worker: str) -> dict[str, Any]:
        """What Ray tells of a worker's actor."""
        name = f"{self.spec.name}/{worker}/{self.spec.uid[:12]}"
        actors = self.asked("/api/v0/actors?detail=1&limit=1000")["data"]["result"]["result"]
        return next(dict(actor) for actor in actors if actor["name"] == name)

    def node_of(self, worker: str) -> str:
        """Id of the node that it is on."""
        return str(self.actor(worker)["node_id"])

    def drain(self, node: str, seconds: int = 60) -> None:
        """Have Ray take a node, as an autoscaler does that is told of a preemption."""
        command = [
            *(str(BIN / "ray"), "drain-node", "--address", os.environ["RAY_LAB_GCS"], "--node-id", node),
            *("--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "a test"),
            *("--deadline-remaining-seconds", str(seconds)),
        ]
        subprocess.run(command, check=True, capture_output=True)


class SharingRun(RayRun):
    """The same with as many workers on a node as it has CPUs."""

    demands = {"num_cpus": 1}  # noqa: RUF012  # read only
