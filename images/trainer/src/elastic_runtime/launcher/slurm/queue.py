"""Slurm as a :class:`~elastic_runtime.launcher.jobs.workers.JobQueue`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from typing_extensions import override

from elastic_runtime.launcher.jobs.workers import JobQueue
from elastic_runtime.run.jobs import Job
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.slurm.commands import Commands
from elastic_runtime.slurm.jobs import SlurmSpec, options, script, why_pending

AHEAD = 120.0
"""Seconds before the end of its job in which a worker is told of it, at least; ``SlurmSpec.grace`` if that is more."""


class SlurmQueue(JobQueue):
    """Jobs of one run. Each is a batch job with one step.

    Args:
        spec: of the run.
        slurm: how jobs are submitted.
        commands: of Slurm.
    """

    system = "Slurm"
    later = 15.0

    def __init__(self, spec: RunSpec, slurm: SlurmSpec, commands: Commands) -> None:
        self._spec, self._slurm, self._commands = spec, slurm, commands
        self.python, self.grace = slurm.python, slurm.grace
        self.ahead = max(AHEAD, slurm.grace)

    @override
    def jobs(self) -> list[Job]:
        return self._commands.jobs(self._spec.name)

    @override
    def submit(self, worker: str, command: Sequence[str], output: Path) -> str:
        chosen = options(self._slurm, self._spec, worker, output)
        return self._commands.submit(chosen, script(self._slurm, command))

    @override
    def cancel(self, ids: Iterable[str], *, in_order: bool = False) -> None:
        self._commands.cancel(ids, "TERM" if in_order else "")

    @override
    def why_pending(self, reason: str) -> tuple[str, bool]:
        return why_pending(reason)
