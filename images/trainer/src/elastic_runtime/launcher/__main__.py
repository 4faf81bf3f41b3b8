"""``python -m elastic_runtime.launcher RUN_DIR``: launcher of a run whose documents are in a folder, until it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from elastic_runtime import __version__
from elastic_runtime.clock import utc_now
from elastic_runtime.errors import ElasticError, FailureKind, InvalidSettings, PermanentError
from elastic_runtime.launcher.record.output import OutputLog, start_log
from elastic_runtime.net.descriptors import raise_descriptor_limit
from elastic_runtime.net.sockets import named_address
from elastic_runtime.printable import LONG, printable
from elastic_runtime.ray.jobs import SPEC as RAY
from elastic_runtime.run.join import BY_NAME, HOW_TO_NAME, JoinSpec
from elastic_runtime.run.locking import take
from elastic_runtime.run.rundir import LauncherProcess, RunDir
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import Phase, Status
from elastic_runtime.scheduling import stand_beside_ranks
from elastic_runtime.slurm.jobs import SPEC as SLURM
from elastic_runtime.spark.jobs import SPEC as SPARK

if TYPE_CHECKING:
    from elastic_runtime.launcher.folder.platform import FolderPlatform

VALIDITY = timedelta(days=365)
"""Validity of a local run's certificates. They end with its launcher, in a folder that only its user can read."""


async def run_in_folder(folder: RunDir) -> Status:
    """Run what is laid down in the folder."""
    # Here, since what they import may be missing, which is to be said in the status.
    from elastic_runtime.launcher.joining import Joining
    from elastic_runtime.launcher.loop import Launcher
    from elastic_runtime.net import certificates

    spec = replace(folder.read_spec(), hostfile=None)  # A path in a container; here it would be anybody's.
    platform, loop = _platform(folder, spec), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, platform.signalled, signal.Signals(number).name)
    try:
        certificates.remove(folder.tls)
        authority, port = certificates.create(folder.tls, [platform.address], VALIDITY), 0
        if spec.join:
            check_address(replace(spec.join, address=platform.address), spec.engine)
            port, platform.joining = spec.join.port, Joining(spec, authority, folder.tls, folder, __version__)
        output = OutputLog(sys.stdout, spec.log_limit)
        return await Launcher(spec, platform, output, folder.tls, platform.address, port).run()
    finally:
        certificates.remove(folder.tls)


def _platform(folder: RunDir, spec: RunSpec) -> FolderPlatform:
    """Return the platform of that run, whose workers are where its creator has said."""
    if (folder.path / SLURM).exists():
        from elastic_runtime.launcher.slurm.platform import slurm_platform
        from elastic_runtime.slurm.commands import Commands

        return slurm_platform(folder, spec, Commands())
    if (folder.path / RAY).exists():
        from elastic_runtime.launcher.ray.platform import ray_platform

        return ray_platform(folder, spec)
    if (folder.path / SPARK).exists():
        from elastic_runtime.launcher.spark.platform import SparkPlatform

        return SparkPlatform(folder, spec)
    if spec.pool:
        from elastic_runtime.launcher.pool.platform import PoolPlatform

        return PoolPlatform(folder, spec, spec.pool)
    from elastic_runtime.launcher.local.platform import LocalPlatform

    return LocalPlatform(folder, spec)


def check_address(join: JoinSpec, engine: str) -> None:
    """Raises InvalidSettings where the launcher cannot listen there, or ranks of that engine use another one."""
    try:
        socket.create_server(
            (join.address, join.port), family=socket.AF_INET6 if ":" in join.address else socket.AF_INET
        ).close()
    except OSError as error:
        problem = f"the launcher cannot listen on {join.address}, port {join.port}: {error.strerror}"
        remedy = "Write an address of the machine that the launcher runs on, and a port that no other run there has"
        raise InvalidSettings("workers.join", problem, remedy) from error
    if engine in BY_NAME and (named := named_address()) != join.address:
        problem = f"the name of the launcher's machine resolves to {named or 'nothing'}, not to {join.address}"
        raise InvalidSettings("workers.join", problem, HOW_TO_NAME)


async def run_or_refuse(folder: RunDir) -> Status:
    """Run as :func:`run_in_folder`. If this Python cannot run it at all, the reason is its final status.

    Raises:
        ElasticError: what is wrong may pass, or there is no spec that could be read.
    """
    try:
        return await run_in_folder(folder)
    except PermanentError as error:
        return refuse(folder, str(error))
    except ImportError as error:
        return refuse(
            folder,
            f"{sys.executable} cannot run a launcher: {printable(error)}. "
            "Install elastic-runtime[torch], [horovod] or [tensorflow] there",
        )


def refuse(folder: RunDir, why: str) -> Status:
    """Publish that the run cannot be run. Raises ElasticError where nobody could read that."""
    sys.stderr.write(f"launcher: this run cannot be run: {printable(why, LONG)}\n")
    spec, now = folder.read_spec(), utc_now()
    status = folder.read_status() or Status(spec.name, spec.uid, Phase.PENDING, "", now, target_size=folder.read_size())
    reason = f"the launcher cannot run: {printable(why, LONG)}"
    failed = replace(
        status,
        phase=Phase.FAILED,
        failure=FailureKind.LAUNCHER_ERROR,
        reason=reason,
        world_size=0,
        updated=now,
        finished=now,
    )
    folder.write_status(failed)
    return failed


def main() -> None:
    """Exit status 0 when the run succeeded, 1 when it failed, 2 when it could not be run at all."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m elastic_runtime.launcher RUN_DIR")
    start_log()
    raise_descriptor_limit()
    stand_beside_ranks()
    folder = RunDir(Path(sys.argv[1]).resolve())
    try:
        with folder.lock.open("a") as lock:
            if not take(lock.fileno()):
                sys.exit(f"another launcher runs {folder.path}")
            os.set_inheritable(lock.fileno(), False)
            folder.write_launcher(LauncherProcess.of(os.getpid()))
            status = asyncio.run(run_or_refuse(folder))
    except ElasticError as error:
        sys.stderr.write(f"launcher: {error}\n")
        sys.exit(2)
    finally:
        with contextlib.suppress(OSError):  # Or the interpreter would fail to, and end with another status.
            sys.stdout.flush()
    sys.exit(0 if status.phase is Phase.SUCCEEDED else 2 if status.failure is FailureKind.LAUNCHER_ERROR else 1)


if __name__ == "__main__":
    main()
