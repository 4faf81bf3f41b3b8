"""``cluster="ray:HOST:PORT/FOLDER"``: a launcher as a job of Ray, workers as its actors, documents in a folder.

The folder is on a file system of the cluster, mounted on the machines of Airflow, too. Ray itself is not needed here:
its API of jobs answers at the address of its dashboard.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from typing_extensions import override

from elastic_runtime.documents import to_json, write_atomically
from elastic_runtime.ray.client import RayJobs
from elastic_runtime.ray.credentials import remove_credentials, write_credentials
from elastic_runtime.ray.jobs import SPEC, RaySpec, job_id, submission
from elastic_runtime.run.rundir import RunDir
from elastic_runtime.run.spec import RunSpec
from elastic_training.clusters.claims import Times
from elastic_training.clusters.cluster import Cluster
from elastic_training.clusters.folder import FolderPlace
from elastic_training.clusters.jobs import TIMES, JobHost, SeenJobs, write_starter
from elastic_training.clusters.location import RayName
from elastic_training.identity.ownership import read_owner
from elastic_training.identity.page_address import ids_of, page_of


class RayHost(JobHost):
    """Launchers as jobs of Ray.

    Args:
        client: of its API.
        seen: its jobs.
        ray: how the launchers of runs that are created here are submitted; None: none is created.
    """

    def __init__(self, client: RayJobs, seen: SeenJobs, ray: RaySpec | None) -> None:
        super().__init__(seen)
        self._client, self._ray = client, ray

    @override
    def plan(self, spec: RunSpec) -> str:
        ray, workers = self._wanted(), spec.workers
        return (
            f"launcher: a job at {self._client.address}, {ray.python} -m elastic_runtime.launcher; "
            f"{workers.start} workers ({workers.minimum} to {workers.maximum}) with {workers.slots} slots each: "
            f"actors with {ray.demands}; each rank: {' '.join(spec.command)}"
        )

    @override
    def check(self, spec: RunSpec) -> None:
        self._wanted()

    @override
    def start(self, run: RunDir, credentials: Mapping[str, str]) -> None:
        spec, ray = run.read_spec(), replace(self._wanted(), shown=shown_of(run))
        write_atomically(run.path / SPEC, to_json(ray))
        write_credentials(run.path, credentials)
        submitted = time.time()
        self._client.submit(submission(ray, spec, run.path, run.log))
        write_starter(run, job_id(spec), submitted)

    @override
    def cancel(self, jobs: Sequence[str]) -> None:
        for job in jobs:
            self._client.stop(job)

    @override
    def tidy(self, run: RunDir) -> None:
        super().tidy(run)
        remove_credentials(run.path)  # Of a launcher that had no time to.

    def _wanted(self) -> RaySpec:
        assert self._ray is not None, "a cluster that creates no runs was asked to"
        return self._ray


class RayCluster(Cluster):
    """Runs in one folder of a Ray cluster.

    Args:
        name: of the folder, and the address of Ray's API.
        ray: how launchers are submitted; None: no run is created.
        times: for tests.
    """

    def __init__(self, name: RayName, ray: RaySpec | None = None, times: Times = TIMES) -> None:
        client, seen = client_of(name.address)
        super().__init__(FolderPlace(Path(name.folder), RayHost(client, seen, ray), times, poll=1.0))


def shown_of(run: RunDir) -> dict[str, str]:
    """Return what Ray's dashboard shows of whose run it is, and where its page is, as far as both are known."""
    owner = read_owner(run.read_owner())
    if owner is None:
        return {}
    page = page_of(owner.task)
    known = {**ids_of(owner.task), "try_number": owner.try_number, **({"page": page} if page else {})}
    return {name: str(value) for name, value in known.items()}


@cache
def client_of(address: str) -> tuple[RayJobs, SeenJobs]:
    """Return this process' client of Ray's API at that address, and its view of the jobs."""
    client = RayJobs(address)
    return client, SeenJobs("Ray", client.jobs)
