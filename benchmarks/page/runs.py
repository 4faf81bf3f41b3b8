"""Runs as a folder of this machine has them, without a process of theirs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from elastic_runtime.clock import utc_now
from elastic_runtime.documents import to_json, write_atomically
from elastic_runtime.launcher.record.hardware import HardwareRecord
from elastic_runtime.launcher.record.series import noted
from elastic_runtime.protocol.wire import Heartbeat
from elastic_runtime.run.rundir import LauncherProcess, RunDir
from elastic_runtime.run.spec import RunSpec, WorkersSpec
from elastic_runtime.run.status import Phase, Series, Status, Usage
from elastic_runtime.run.status_figures import GpuFigures
from elastic_training.identity.naming import TaskIdentity
from elastic_training.identity.ownership import Owner

DEPLOYMENT = "benchmark"
WORKERS, POINTS, METRICS = 16, 300, 20
_GPUS = tuple(GpuFigures(index, "NVIDIA H100 80GB HBM3", 97.0, 70 * 2**30, 80 * 2**30) for index in range(8))
_BEAT = Heartbeat(799.9, 7 * 10**10, 123456789.0, 987654321.0, _GPUS)


def task_of(number: int) -> TaskIdentity:
    """Whose the run of that number is."""
    return TaskIdentity("nightly", f"scheduled__{number}", "train", -1, DEPLOYMENT)


def lay_down(root: Path, count: int) -> int:
    """So many runs, of which every fourth trains, each with curves. Returns the bytes of a status."""
    status = _status()
    for number in range(count):
        task = task_of(number)
        uid = f"uid-{number}"
        owner = Owner(task.dag_id, task.run_id, task.task_id, task.map_index, 1, f"nonce-{number}", DEPLOYMENT)
        spec = RunSpec(task.name, uid, ("python", "train.py"), WorkersSpec(1, 2, 4))
        run = RunDir(root / spec.name)
        run.create(spec, owner.text())
        trains = number % 4 == 0
        updated = utc_now() - timedelta(seconds=number)
        said = replace(status, run=spec.name, uid=uid, updated=updated, step=number)
        launcher = LauncherProcess.of(os.getpid())  # This process stands for it.
        write_atomically(run.path / "starter.json", to_json(launcher if trains else replace(launcher, started=0.0)))
        if not trains:
            said = replace(said, phase=Phase.SUCCEEDED, reason="all ranks ended with code 0", finished=updated)
        run.write_status(said)
    return len(to_json(status))


def _status() -> Status:
    begin = utc_now() - timedelta(hours=1)
    names = [f"worker-{number}" for number in range(WORKERS)]
    record = HardwareRecord(None)
    curves: Mapping[str, Series] = {f"metric_{number}": Series() for number in range(METRICS)}
    for point in range(POINTS):
        now = begin + timedelta(seconds=10 * point)
        curves = noted(curves, dict.fromkeys(curves, point / 7), point, now)
        for name in names:
            record.heard(name, _BEAT, now)
    return Status(
        "",
        "",
        Phase.RUNNING,
        "2 ranks train",
        utc_now(),
        started=begin,
        world_size=2,
        target_size=2,
        series=curves,
        hardware=record.told(names),
        usage=(Usage("spot", "g4dn.xlarge", 7200.0, 10.0), Usage("on-demand", "g4dn.xlarge", 60.0, 0.0)),
    )
