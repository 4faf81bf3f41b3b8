"""Platform of a run in Ray: the run's folder, on a file system that all nodes see, and actors as workers."""

from __future__ import annotations

import os
from importlib import import_module

from elastic_runtime.documents import from_json
from elastic_runtime.launcher.jobs.platform import JobPlatform
from elastic_runtime.launcher.jobs.workers import JobWorkers
from elastic_runtime.launcher.ray.queue import RayQueue, connect
from elastic_runtime.ray.credentials import read_credentials
from elastic_runtime.ray.jobs import SPEC, RaySpec
from elastic_runtime.run.reading import read_bytes
from elastic_runtime.run.rundir import RunDir
from elastic_runtime.run.spec import RunSpec


def ray_platform(folder: RunDir, spec: RunSpec) -> JobPlatform:
    """Return the platform of a run whose launcher is a job of Ray.

    Args:
        folder: of the run.
        spec: what to run.

    Raises:
        ClusterUnavailable: Ray does not answer.
        ImportError: this Python has no Ray.
        InvalidDocument: the run's folder does not say what workers want.
    """
    wanted = from_json(RaySpec, read_bytes(folder.path / SPEC).decode())
    os.environ.update(read_credentials(folder.path))  # As of a launcher anywhere: it opens the checkpoint store, too.
    ray = import_module("ray")
    address = connect(ray, spec.uid)
    return JobPlatform(folder, spec, JobWorkers(folder, spec, RayQueue(spec, wanted, ray, folder.path)), address)
