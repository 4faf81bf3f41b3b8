"""A way into a worker, for a person who has the right to it: Kubernetes' own, with that person's own credentials."""

from __future__ import annotations

import shlex
import shutil
import subprocess

from elastic_runtime.errors import Conflict, InvalidSettings
from elastic_runtime.run.status import Status, WorkerStatus
from elastic_training.clusters.cluster import Cluster
from elastic_training.console.command.output import say


def enter(cluster: Cluster, status: Status, name: str | None, run_it: bool) -> int:
    """Print the command that opens a shell in a worker, or run it.

    Args:
        cluster: of the run.
        status: its present one.
        name: of the worker; None: that of rank 0, or the first.
        run_it: whether to run it here, on this terminal.

    Returns:
        The exit status: of the command, if it was run.

    Raises:
        Conflict: no worker of the run is there.
        InvalidSettings: the run has no such worker, or there is nothing that could be run here.
    """
    worker = _worker(status, name)
    words = cluster.shell_in(worker.name)
    if not words:
        pids = ", ".join(map(str, worker.pids)) or "not known"
        if run_it:
            problem = f"{worker.name} runs on this machine, as the processes {pids}"
            raise InvalidSettings("--run", problem, "Look at them with py-spy, gdb or strace; /proc/PID/cwd is where")
        say(f"{worker.name} runs on this machine; its agent and ranks are the processes {pids}")
        return 0
    if not run_it:
        say(shlex.join(words))
        return 0
    if shutil.which(words[0]) is None:
        raise InvalidSettings("--run", f"{words[0]} is not installed here", f"Run elsewhere: {shlex.join(words)}")
    return subprocess.run(words, check=False).returncode  # a list; names are checked by Kubernetes


def _worker(status: Status, name: str | None) -> WorkerStatus:
    present = [each for each in status.workers if not each.state.gone]
    if not present:
        raise Conflict(f"no worker of the run {status.run} is there: {status.phase} ({status.reason})")
    if name is None:
        return next((each for each in present if 0 in each.ranks), present[0])
    if found := [each for each in present if each.name == name]:
        return found[0]
    names = ", ".join(each.name for each in present)
    raise InvalidSettings("WORKER", f"{name!r} is not there", f"Write one of {names}")
