"""Another peer of the engine ``torch``: TorchFT, a replica group of one rank for each worker."""

from __future__ import annotations

import shlex
import signal
import socket
import subprocess
from pathlib import Path

from benchmarks.harness.sides import Job, Launched, environment

ENVIRONMENT = Path(__file__).resolve().parents[2] / ".venv-torchft" / "bin"
_SCRIPT = Path(__file__).resolve().parents[1] / "torchft_training.py"


def is_installed() -> bool:
    """Whether its environment is there (``make setup-torchft``)."""
    return (ENVIRONMENT / "torchft_lighthouse").exists()


class TorchFT:
    """One lighthouse, with the settings of its README, and one ``torchrun`` of one node for each worker.

    ``torchrun`` starts a killed rank anew. There is no planned leave: the newest ``torchrun`` gets SIGTERM.

    Args:
        script: what its ranks run.
    """

    name = "torchft"

    def __init__(self, script: Path = _SCRIPT) -> None:
        self.script = script

    def launch(self, job: Job) -> Launched:
        """Start the lighthouse and as many replicas; the first is never taken, and the lighthouse ends with it."""
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        lighthouse = shlex.join([
            str(ENVIRONMENT / "torchft_lighthouse"), "--bind", f"127.0.0.1:{port}",
            *("--min_replicas", "1", "--quorum_tick_ms", "100", "--join_timeout_ms", "10000"),
        ])  # fmt: skip
        replicas: list[subprocess.Popen[bytes]] = []

        def resize(workers: int) -> None:
            while len(replicas) < workers:
                first = f"{lighthouse} & {_WITH_IT}" if not replicas else 'exec "$@"'
                replicas.append(_replica(job, port, len(replicas), first))
            while len(replicas) > workers:
                replicas.pop().send_signal(signal.SIGTERM)

        resize(job.size)
        return Launched(replicas[0], resize)


_WITH_IT = 'lighthouse=$!; "$@"; code=$?; kill $lighthouse; wait $lighthouse; exit $code'


def _replica(job: Job, port: int, number: int, shell: str) -> subprocess.Popen[bytes]:
    command = [
        *("bash", "-c", shell, "replica", str(ENVIRONMENT / "python"), "-m", "torch.distributed.run"),
        *("--standalone", "--nproc-per-node=1", "--max-restarts=100", *job.command[1:]),
    ]
    variables = {
        **environment(), "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}", "REPLICA_GROUP_ID": str(number),
        "PATH": f"{ENVIRONMENT}:{environment()['PATH']}",
    }  # fmt: skip
    with (job.folder / "log").open("ab") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=variables, start_new_session=True
        )
