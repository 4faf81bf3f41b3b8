"""The peer of the engine ``torch``: ``torchrun``, elastic, as its documentation has it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

from benchmarks.harness.sides import MAXIMUM, Job, Launched, environment


class Torchrun:
    """One ``torchrun --nnodes 1:4`` for each worker, as on as many machines; all else but one setting as by default.

    Its rendezvous waits 30 s for further nodes whenever there are enough and not the most.

    Args:
        script: what its ranks run.
        nodes: its ``--nnodes``.
        last_call: seconds that it waits for further nodes; None: its default.
    """

    name = "torchrun"

    def __init__(self, script: Path, nodes: str = f"1:{MAXIMUM}", last_call: int | None = None) -> None:
        self.script, self.nodes = script, nodes
        self._last_call = "" if last_call is None else f",last_call_timeout={last_call}"

    def launch(self, job: Job) -> Launched:
        """Start as many nodes; the first has the rendezvous, and is never taken."""
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        options = (f"--nnodes={self.nodes}", f"--rdzv-endpoint=127.0.0.1:{port}")
        nodes: list[subprocess.Popen[bytes]] = []

        def resize(workers: int) -> None:
            while len(nodes) < workers:
                conf = f"is_host={str(not nodes).lower()}{self._last_call}"
                nodes.append(_node(job, *options, f"--rdzv-conf={conf}"))
            while len(nodes) > workers:
                nodes.pop().send_signal(signal.SIGTERM)

        resize(job.size)
        return Launched(nodes[0], resize)


def _node(job: Job, *options: str) -> subprocess.Popen[bytes]:
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1", *options),
        *("--rdzv-backend=c10d", "--rdzv-id=benchmark", "--local-addr=127.0.0.1", "--max-restarts=100"),
        *job.command[1:],
    ]
    # With the shared store, a node that stays the first says nothing to newcomers (torch 2.13), and all end after 60 s.
    variables = {**environment(), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    with (job.folder / "log").open("ab") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=variables, start_new_session=True
        )
