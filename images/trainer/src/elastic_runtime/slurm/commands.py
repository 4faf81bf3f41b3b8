"""Slurm's commands: submit jobs, look at them, end them. Everything blocks."""

from __future__ import annotations

import os
import re
import subprocess
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from typing_extensions import override

from elastic_runtime.errors import ClusterUnavailable, InvalidDocument, InvalidSettings
from elastic_runtime.printable import LONG, printable
from elastic_runtime.run.jobs import Job
from elastic_runtime.slurm.jobs import FORMAT, read_jobs

TIMEOUT = 60.0
"""Seconds for a command's answer; Slurm's commands themselves give up after about ten."""
AT_ONCE = 100
"""Jobs that one call of ``scancel`` ends."""
_LONGEST_ANSWER = 16 << 20
"""Bytes."""
LASTING = re.compile(
    r"[Ii]nvalid|not available|not permitted|[Nn]ot allowed|[Uu]nrecognized|[Uu]nknown|[Pp]ermission denied|"
    r"never run|not satisf|exceeds"
)
"""Of complaints that another try would hear again."""
PASSING = re.compile("inactive or drain|down, drained|[Bb]usy")
"""Of those, what an administrator or the next hour changes: a partition or a node that is drained."""
_OF_THE_CLUSTER = ("SLURM_CONF", "SLURM_JWT", "SLURM_CLUSTERS")
REMEDY = "Correct it, or ask those who look after the cluster"


class Shell(Protocol):
    """Where commands are called."""

    def __call__(self, command: Sequence[str], stdin: str, variables: Mapping[str, str]) -> tuple[int, str, str]:
        """Call one.

        Args:
            command: its words.
            stdin: what it reads.
            variables: to be set in its environment, beside what is there.

        Returns:
            Exit status, output and errors.

        Raises:
            InvalidSettings: there is no such command.
            ClusterUnavailable: it cannot be called now, or has not answered in time.
        """


def on_this_machine(
    command: Sequence[str], stdin: str, variables: Mapping[str, str], environment: Mapping[str, str] = os.environ
) -> tuple[int, str, str]:
    """Call it here; implements :class:`Shell`.

    Of a job in which this runs, the command hears nothing: ``sbatch`` hands variables of Slurm on whatever is exported,
    and the ``srun`` of a worker would bind it to the launcher's CPUs.
    """
    own = {name: value for name, value in environment.items() if not name.startswith("SLURM_")}
    own |= {name: environment[name] for name in _OF_THE_CLUSTER if name in environment}
    try:
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, errors="replace", timeout=TIMEOUT, check=False,
            env={**own, **variables},
        )  # fmt: skip
    except FileNotFoundError:
        problem = f"there is no {command[0]} on this machine"
        remedy = "Install Slurm's client commands, or name a connection of type ssh to a machine that has them"
        raise InvalidSettings("cluster", problem, remedy) from None
    except subprocess.TimeoutExpired:
        raise ClusterUnavailable(f"{command[0]} has not answered in {TIMEOUT:.0f} s") from None
    except OSError as error:
        raise ClusterUnavailable(f"{command[0]} cannot be called: {error}") from error
    return done.returncode, done.stdout, done.stderr


class SlurmClient(Protocol):
    """A way to Slurm. Methods raise ClusterUnavailable where it does not answer."""

    @abstractmethod
    def submit(self, options: Sequence[str], script: str, variables: Mapping[str, str] | None = None) -> str:
        """Submit a batch job. Return its id.

        Args:
            options: of ``sbatch``, with ``--parsable``.
            script: its batch script.
            variables: that ``options`` export by name.

        Raises:
            InvalidSettings: Slurm refuses it for good.
        """

    @abstractmethod
    def jobs(self, name: str | None = None) -> list[Job]:
        """This user's jobs of runs, with those that have ended a few minutes ago.

        Args:
            name: of a run; None: of all.
        """

    @abstractmethod
    def cancel(self, ids: Iterable[str]) -> None:
        """End jobs, by their ids; no harm where one has ended."""


class Commands(SlurmClient):
    """Slurm's own commands.

    Args:
        shell: where they are called.
    """

    def __init__(self, shell: Shell = on_this_machine) -> None:
        self._shell = shell

    @override
    def submit(self, options: Sequence[str], script: str, variables: Mapping[str, str] | None = None) -> str:
        answer = self._call(["sbatch", *options], script, variables)
        number = answer.strip().partition(";")[0]
        if not re.fullmatch("[0-9]{1,12}", number):
            raise ClusterUnavailable(f"sbatch has written {printable(answer, 100)!r} in place of a job's id")
        return number

    @override
    def jobs(self, name: str | None = None) -> list[Job]:
        chosen = () if name is None else (f"--name={name}",)
        answer = self._call(["squeue", "--me", "--noheader", "--states=all", f"--format={FORMAT}", *chosen])
        if len(answer) > _LONGEST_ANSWER:
            raise ClusterUnavailable("squeue has written more than can be read")
        try:
            return list(read_jobs(answer))
        except InvalidDocument as error:
            raise ClusterUnavailable(str(error)) from error

    @override
    def cancel(self, ids: Iterable[str], signal: str = "") -> None:
        """End jobs; no harm where one has ended.

        Args:
            ids: of the jobs.
            signal: to be sent to their steps, such as ``TERM``, and nothing else; by default they end as Slurm ends
                jobs.
        """
        some, chosen = sorted(set(ids)), (f"--signal={signal}",) if signal else ()
        for first in range(0, len(some), AT_ONCE):
            self._call(["scancel", "--quiet", *chosen, *some[first : first + AT_ONCE]], fails=False)

    def address_of(self, node: str) -> str:
        """By which Slurm reaches a node: a name or a number."""
        answer = self._call(["scontrol", "show", "node", node, "--oneliner"])
        found = re.search(r"\bNodeAddr=([\w.:-]{1,255})", answer)
        return found[1] if found else node

    def _call(
        self, command: Sequence[str], stdin: str = "", variables: Mapping[str, str] | None = None, *, fails: bool = True
    ) -> str:
        """Args: fails: whether a complaint that is not about the connection is an error."""
        status, output, errors = self._shell(command, stdin, {"SLURM_TIME_FORMAT": "%s", **(variables or {})})
        if status == 0:
            return output
        said = printable(" ".join(line.removeprefix(f"{command[0]}: error: ") for line in errors.splitlines()), LONG)
        if "ontact slurm controller" not in said and LASTING.search(said) and not PASSING.search(said):
            if not fails:
                return output
            raise InvalidSettings("slurm", f"{command[0]} says: {said}", REMEDY)
        raise ClusterUnavailable(f"{command[0]} ended with {status}: {said}")
