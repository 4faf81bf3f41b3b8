"""Settings of jobs in Slurm."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.slurm.jobs import SlurmSpec
from elastic_training.settings.templating import Settings, all_known, is_template
from elastic_training.settings.values import Duration, IntOrTemplate, seconds_of, settings_of, whole_number

_OURS = (
    "job-name", "comment", "nodes", "ntasks", "no-requeue", "requeue", "signal", "output", "error", "open-mode",
    "export", "export-file", "parsable", "array", "wrap", "dependency", "wait", "hold", "test-only",
)  # fmt: skip
"""Options of sbatch that the run sets itself, or that would make a job another one than it expects."""
_NAME = re.compile(r"[\w.,:&|*!\[\]()/=@+-]{1,200}")
_MEMORY = re.compile(r"[0-9]{1,12}[KMGT]?")
_LONGEST_LINE = 2000


@dataclass(frozen=True, slots=True)
class Slurm(Settings):
    """How the jobs of a run are submitted. Each worker is one job with one task; the launcher is one more."""

    partition: str | Any | None = None
    """Several by commas. None: the cluster's default."""
    account: str | Any | None = None
    qos: str | Any | None = None
    constraint: str | Any | None = None
    """Features of nodes, as ``sbatch`` has them: ``"a100&nvlink"``."""
    reservation: str | Any | None = None
    gres: str | Any | None = None
    """Generic resources of a worker: ``"gpu:a100:2"``. None: ``gpu:N`` for ``Workers(gpus=N)``."""
    cpus: IntOrTemplate = 0
    """Of a worker. 0: the cluster's default."""
    memory: str | Any | None = None
    """Of a worker, as ``sbatch`` has it: ``"16G"``. None: the cluster's default."""
    time_limit: Duration | None = None
    """Of a worker's job. At its end the worker leaves, and another job is submitted. None: the partition's."""
    grace: Duration = 30.0
    """Time between SIGTERM and a job's end: ``GraceTime`` of the partition or QOS. A time limit is told of as early."""
    python: str | Any | None = None
    """Interpreter with ``elastic-runtime`` on the nodes. None: the connection's, or that of local runs."""
    setup: Sequence[str] | Any = ()
    """Lines of a login shell before the program: ``["module load cuda/12"]``."""
    prefix: Sequence[str] | Any = ()
    """Words before the program: ``["apptainer", "exec", "--nv", "/shared/trainer.sif"]``."""
    options: Sequence[str] | Any = ()
    """Further options of ``sbatch`` for workers: ``["--exclude=n7"]``."""
    launcher_partition: str | Any | None = None
    """Partition of the launcher, of whose jobs none is preempted. None: ``partition``."""
    launcher_options: Sequence[str] | Any = ()
    """Further options of ``sbatch`` for the launcher, which needs one CPU and 1 GiB of memory."""

    def __post_init__(self) -> None:
        self.known().spec("python", gpus=0)

    @all_known()
    def spec(self, python: str, *, gpus: int) -> SlurmSpec:
        """Return what the launcher needs of them. Raise InvalidSettings, also for rendered values.

        Args:
            python: interpreter, unless one is set.
            gpus: of a worker.
        """
        gres = self.gres or (f"gpu:{gpus}" if gpus else None)
        shared = list(self._named(account=self.account, qos=self.qos, reservation=self.reservation))
        workers = list(self._named(partition=self.partition, constraint=self.constraint, gres=gres))
        if cpus := whole_number("slurm.cpus", self.cpus, least=0):
            workers.append(f"--cpus-per-task={cpus}")
        if self.memory:
            if not _MEMORY.fullmatch(str(self.memory)):
                raise InvalidSettings("slurm.memory", f"{self.memory!r} is not a size", 'Write it as in "16G"')
            workers.append(f"--mem={self.memory}")
        if self.time_limit is not None:
            limit = seconds_of("slurm.time_limit", self.time_limit)
            workers.append(f"--time={-(-int(limit) // 60)}")
        launcher = list(self._named(partition=self.launcher_partition or self.partition))
        return SlurmSpec(
            python=str(self.python or python),
            options=(*shared, *workers, *_options("slurm.options", self.options)),
            launcher_options=(*shared, *launcher, *_options("slurm.launcher_options", self.launcher_options)),
            setup=_lines("slurm.setup", self.setup),
            prefix=_lines("slurm.prefix", self.prefix),
            grace=seconds_of("slurm.grace", self.grace),
        )

    @staticmethod
    def _named(**values: Any) -> Iterator[str]:
        for name, value in values.items():
            if value is None or value == "":
                continue
            if not _NAME.fullmatch(str(value)):
                problem = f"{str(value)[:100]!r} is not what sbatch takes for --{name}"
                raise InvalidSettings(f"slurm.{name}", problem, "Write it as for sbatch")
            yield f"--{name}={value}"


def _lines(field: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InvalidSettings(field, f"a {type(value).__name__} is not a list of texts", 'Write ["module load cuda"]')
    for line in value:
        if not isinstance(line, str) or not line or len(line) > _LONGEST_LINE or set(line) & set("\n\r\0"):
            raise InvalidSettings(field, "an entry is not one line of text", "Write one line in each entry")
    return tuple(value)


def _options(field: str, value: Any) -> tuple[str, ...]:
    found = _lines(field, value)
    for option in found:
        if not re.match(r"--[a-z]", option):
            problem = f"{option[:100]!r} is not a long option of sbatch"
            raise InvalidSettings(field, problem, 'Write "--exclude=n7"')
        if (name := option.removeprefix("--").partition("=")[0]) in _OURS:
            raise InvalidSettings(field, f"--{name} is set by the run itself", "Leave it out")
    return found


def slurm_of(value: Slurm | Mapping[str, Any] | Any) -> Any:
    """What an operator was given, as :class:`Slurm`; None, or a template, as it is. Raises InvalidSettings."""
    if value is None or is_template(value):
        return value
    return settings_of(Slurm, "slurm", value, 'Slurm(partition="gpu")')
