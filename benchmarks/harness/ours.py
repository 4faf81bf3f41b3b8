"""Our side: the launcher of ``elastic_runtime`` with its local worker set, everything on."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path

from benchmarks.harness.sides import MAXIMUM, TRAINING, Job, Launched, environment
from elastic_runtime.run.rundir import RunDir
from elastic_runtime.run.spec import CheckpointSpec, RecoverySpec, RunSpec, WorkersSpec


class OurLauncher:
    """``python -m elastic_runtime.launcher`` with its defaults: agents, heartbeats, status, warm processes.

    Args:
        checkpoint_every: seconds between durable checkpoints, for scripts that write any.
        engine: of the run.
        script: what its ranks run.
        recovery: settings for lost workers and failing ranks.
        maximum: most workers.
    """

    name = "elastic_runtime"

    def __init__(
        self,
        checkpoint_every: float = 60.0,
        engine: str = "horovod",
        script: Path = TRAINING,
        recovery: RecoverySpec | None = None,
        maximum: int = MAXIMUM,
    ) -> None:
        self._checkpoint_every, self._engine, self.script = checkpoint_every, engine, script
        self._recovery, self._maximum = recovery or RecoverySpec(), maximum

    def launch(self, job: Job) -> Launched:
        """Lay the run down and start its launcher."""
        run = RunDir(job.folder / "run")
        run.create(
            RunSpec(
                name="benchmark",
                uid=uuid.uuid4().hex,
                command=job.command,
                workers=WorkersSpec(minimum=1, start=job.size, maximum=self._maximum),
                engine=self._engine,
                recovery=self._recovery,
                checkpoint=CheckpointSpec(f"file://{job.folder}/checkpoints", every=self._checkpoint_every),
            ),
            owner="benchmark",
        )
        with run.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "elastic_runtime.launcher", str(run.path)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment(), start_new_session=True,
            )  # fmt: skip
        return Launched(process, run.write_size)
