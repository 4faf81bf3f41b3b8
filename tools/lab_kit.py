"""What the labs of Slurm, Spark and Ray on this machine share."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

UNAVAILABLE = 3
"""Exit status where there can be no lab; as that of tools/cluster."""
_READY = 300.0
"""Seconds for any state of a lab, on a machine with other things to do."""


def exit_at_sigterm() -> None:
    """Have SIGTERM end the lab as Ctrl+C does: nothing of it is left."""
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))


def installed(packages: Mapping[str, str], system: str, path: str | None = None) -> bool:
    """Install the packages of Debian whose programs are missing. False, with a message, where that is not possible.

    Args:
        packages: by program; several by spaces.
        system: name of what they are, for people.
        path: where programs are looked for; None: PATH.
    """
    wanted = (package for program, package in packages.items() if not shutil.which(program, path=path))
    missing = " ".join(wanted).split()
    if not missing:
        return True
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        print(f"LEFT OUT: no {system} here: install {' '.join(missing)}, as root on Debian", file=sys.stderr)
        return False
    install = ["apt-get", "install", "-yq", "--no-install-recommends", *missing]
    subprocess.run(install, check=True, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})
    return True


def free_ports(count: int) -> list[int]:
    """Return ports in a row that are free now."""
    for first in range(20000, 30000, 50):
        ports = list(range(first, first + count))
        with ExitStack() as stack:
            try:
                for port in ports:
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
        return ports
    raise RuntimeError("no ports are free")


def until(holds: Callable[[], bool], what: str, folder: Path) -> None:
    """Wait for it. If it does not come, show the logs in that folder."""
    limit = time.monotonic() + _READY
    while not holds():
        if time.monotonic() > limit:
            logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(folder.glob("*.log")))
            raise RuntimeError(f"it has not come to this in {_READY:.0f} s: {what}\n{logs}")
        time.sleep(0.1)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a daemon, which ends what it started; by force after 15 s."""
    process.terminate()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
