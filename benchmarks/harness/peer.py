"""The peer: ``horovodrun`` as its documentation has it, with a host-discovery script.

One host with one slot per worker, as on our side. ``horovodrun`` reaches any host over SSH whose name does not resolve
to an address of a local interface (``horovod.runner.util.network``), so the hosts are different spellings of 127.0.0.1
that ``inet_aton(3)`` accepts: different names to Horovod, no SSH that would slow it down, nothing to configure.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.harness.sides import MAXIMUM, TRAINING, Job, Launched, environment

HOSTS = ("127.0.0.1", "127.0.1", "127.1", "localhost")


class Horovodrun:
    """Plain ``horovodrun``, every setting at its default."""

    name, script = "horovodrun", TRAINING

    def launch(self, job: Job) -> Launched:
        """Start it with the first ``job.size`` hosts."""
        hosts, script = job.folder / "hosts", job.folder / "discover"
        _write_hosts(hosts, job.size)
        script.write_text(f"#!/bin/sh\ncat '{hosts}'\n")
        script.chmod(0o700)
        elastic = ["--min-np", "1", "--max-np", str(MAXIMUM), "--host-discovery-script", str(script)]
        return Launched(_start(job, elastic), lambda workers: _write_hosts(hosts, workers))


class StaticHorovodrun:
    """``horovodrun`` with fixed hosts: no elastic driver, no discovery, nothing beside the ranks to take their time."""

    name, script = "horovodrun, not elastic", TRAINING

    def launch(self, job: Job) -> Launched:
        """Start it; it keeps its size."""
        hosts = ",".join(f"{host}:1" for host in HOSTS[: job.size])
        return Launched(_start(job, ["-H", hosts]), lambda _workers: None)


def _start(job: Job, options: list[str]) -> subprocess.Popen[bytes]:
    program = str(Path(sys.executable).parent / "horovodrun")
    command = [program, "-np", str(job.size), "--network-interface", "lo", *options, *job.command]
    with (job.folder / "log").open("ab") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment(), start_new_session=True
        )


def _write_hosts(path: Path, workers: int) -> None:
    beside = path.with_suffix(".new")
    beside.write_text("".join(f"{host}:1\n" for host in HOSTS[:workers]))
    os.replace(beside, path)
