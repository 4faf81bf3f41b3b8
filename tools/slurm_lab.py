"""A Slurm cluster on this machine: ``tools/slurm with -- COMMAND`` runs a command that finds it by ``SLURM_CONF``.

munge, one slurmctld and four slurmd of Debian's packages, all on loopback, in a folder that is removed in the end. Two
partitions on the same nodes: jobs of ``high`` preempt those of ``low``, after :data:`GRACE` seconds. slurmrestd is at
the URL of ``SLURM_LAB_REST``, for tokens of ``scontrol token``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lab_kit import UNAVAILABLE, end, exit_at_sigterm, free_ports, installed, until

PACKAGES = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "munged": "munge",
    "slurmrestd": "slurmrestd slurm-wlm-jwt-plugin",
}
NODES = 4
GRACE = 20
"""Seconds between a preempted job's SIGTERM and its end."""
CPUS = 4
"""That each node is said to have."""
_PATH = "/usr/sbin:/sbin:" + os.environ.get("PATH", "")
_CONFIGURATION = """\
ClusterName=lab
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key={folder}/jwt.key
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
KillWait=5
SlurmdTimeout=20
NodeName=n[1-{nodes}] NodeHostname=localhost NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs={cpus} RealMemory=4000
PartitionName=low Nodes=n[1-{nodes}] Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=CANCEL GraceTime={grace}
PartitionName=high Nodes=n[1-{nodes}] MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""  # noqa: E501  # lines as slurm.conf has them


def main(arguments: list[str]) -> int:
    """Return the command's exit status, or :data:`UNAVAILABLE`."""
    if arguments[:2] != ["with", "--"] or len(arguments) < 3:
        sys.exit("usage: slurm with -- COMMAND...")
    if not installed(PACKAGES, "Slurm", _PATH):
        return UNAVAILABLE
    exit_at_sigterm()
    with lab() as environment:
        return subprocess.run(arguments[2:], check=False, env=environment).returncode


@contextmanager
def lab() -> Iterator[dict[str, str]]:
    """Start it. Yields the environment of those who use it; nothing of it is left afterwards."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True)))
        folder.chmod(0o755)  # munge's socket has to be reachable.
        for name in ("state", "spool"):
            (folder / name).mkdir()
        for name in ("munge.key", "jwt.key"):
            (folder / name).touch(mode=0o600)
            (folder / name).write_bytes(os.urandom(1024))
        *ports, rest = free_ports(NODES + 2)
        configuration = folder / "slurm.conf"
        configuration.write_text(
            _CONFIGURATION.format(
                folder=folder, controller=ports[0], first=ports[1], last=ports[-1], nodes=NODES, cpus=CPUS, grace=GRACE
            )
        )
        address = f"127.0.0.1:{rest}"
        environment = {
            **os.environ, "SLURM_CONF": str(configuration), "SLURM_LAB_REST": f"http://{address}", "PATH": _PATH
        }  # fmt: skip

        def start(*command: str, **more: str) -> None:
            with (folder / "daemons.log").open("ab") as log:
                process = subprocess.Popen(
                    command, env={**environment, **more}, stdout=log, stderr=log, start_new_session=True
                )
            stack.callback(end, process)

        files = [f"--{name}={folder}/munge.{name.split('-')[0]}" for name in ("pid-file", "log-file", "seed-file")]
        where = (f"--key-file={folder}/munge.key", f"--socket={folder}/munge.socket")
        start("munged", "--foreground", "--force", *where, *files)
        until((folder / "munge.socket").exists, "munged listens", folder)
        start("slurmctld", "-D", "-c")
        for number in range(1, NODES + 1):
            start("slurmd", "-D", "-N", f"n{number}")
        until(lambda: _idle(environment) == NODES, "all nodes are idle", folder)
        # Not as root, which it refuses: whose jobs they are is in the token of a request.
        plugins = ("-a", "rest_auth/jwt", "-s", "openapi/v0.0.38")
        start("slurmrestd", *plugins, "-u", "nobody", "-g", "nogroup", address, SLURM_JWT="daemon")
        stack.callback(_end_jobs, environment, folder)
        yield environment


def _idle(environment: dict[str, str]) -> int:
    command = ["sinfo", "--noheader", "--Node", "--partition=low", "--states=idle", "--format=%N"]
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
    return len(done.stdout.split())


def _end_jobs(environment: dict[str, str], folder: Path) -> None:
    """No process of a job is left: they would outlive the daemons, as jobs do."""
    states = "--state=PENDING,RUNNING,SUSPENDED,COMPLETING,CONFIGURING"

    def none_left() -> bool:
        subprocess.run(["scancel", "--quiet", "--me"], check=False, env=environment, capture_output=True)
        command = ["squeue", "--noheader", states]
        return not subprocess.run(command, check=False, env=environment, capture_output=True, text=True).stdout.strip()

    until(none_left, "no job is left", folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
