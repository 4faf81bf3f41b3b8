"""Scripted runs whose launcher and workers are jobs of a real Slurm."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Any
from uuid import uuid4

from elastic_runtime.documents import to_json
from elastic_runtime.run.jobs import LAUNCHER, Job, JobState
from elastic_runtime.slurm.commands import Commands
from elastic_runtime.slurm.jobs import SPEC, SlurmSpec, options, script
from tests.local.harness import ScriptedRun
from tests.paced import until

WHOLE_NODE = "--cpus-per-task=4"


class SlurmRun(ScriptedRun):
    """A run in the Slurm of ``tools/slurm with``. Its launcher is not preempted."""

    commands = Commands()
    launchers = "high"
    """Partition of the launcher."""
    share = WHOLE_NODE
    """Of a node, for each worker."""

    def start(self) -> SlurmRun:
        # Of its own: in one Slurm, another run's jobs would be taken for this one's.
        self.spec = replace(self.spec, uid=uuid4().hex)
        self.folder.create(self.spec, owner="test")
        self.slurm = SlurmSpec(
            sys.executable,
            options=("--partition=low", self.share),
            launcher_options=(f"--partition={self.launchers}", "--cpus-per-task=1"),
            grace=20.0,
            exported=("PYTHONPATH",),
        )
        (self.folder.path / SPEC).write_text(to_json(self.slurm))
        command = [sys.executable, "-m", "elastic_runtime.launcher", str(self.folder.path)]
        chosen = options(self.slurm, self.spec, LAUNCHER, self.folder.log)
        self.job = self.commands.submit(
            chosen, script(self.slurm, command), {"PYTHONPATH": os.pathsep.join(self._path)}
        )
        return self

    def jobs(self) -> dict[str, Job]:
        """Those that are not over, by part of the run; of a worker that left, its part is another's."""
        own = (job for job in self.commands.jobs(self.spec.name) if job.run == self.spec.uid)
        return {job.part: job for job in own if job.state is not JobState.OVER}

    def is_over(self) -> bool:
        return LAUNCHER not in self.jobs()

    def end(self, max_wait: float | None = None) -> Any:
        self.until(self.is_over, "the launcher's job is over", max_wait, alive=False)
        status = self.status()
        assert status.phase.final, self.report("the launcher has ended without a final status")
        self.assert_nothing_left()
        return status

    def assert_nothing_left(self) -> None:
        until(lambda: not self.jobs(), lambda: f"no job is left, but {self.jobs()}", 30.0)
        super().assert_no_process(30.0)

    def kill_launcher(self) -> None:
        super().kill_launcher()
        self.close()  # As the next try ends jobs that are left, those that wait in the queue, too.

    def close(self) -> None:
        self.commands.cancel(job.id for job in self.jobs().values())
        until(lambda: not self.jobs(), lambda: f"no job is left, but {self.jobs()}", 60.0)

    def take_node_of(self, rank: int) -> str:
        """Have a job of higher priority want the node of a rank's worker. Returns its id."""
        node = self.jobs()[self.worker(rank).name].node
        wants = ["--parsable", "--partition=high", WHOLE_NODE, f"--nodelist={node}", "--output=/dev/null"]
        return self.commands.submit(wants, "#!/bin/sh\nsleep 600\n")


class SharingRun(SlurmRun):
    """The same with as many workers on a node as it has CPUs."""

    share = "--cpus-per-task=1"
