"""A PostgreSQL of the tests' own.

Not SQLite: it gives the ids of deleted triggers to new ones, so that what is told to a trigger that is gone may reach
another. (The demo, one short run in which nothing is cleared, does with SQLite.) The binaries come from the wheel
``pgserver``, so that no test needs a package of the system; its Python code is not used, because under root it adds a
user to the machine and opens the folders above the environment to all.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_UNPRIVILEGED = "nobody"
"""PostgreSQL refuses to run as root; then it runs as this user, from a copy that this user can read."""

_PARTS = ("pgserver/pginstall/bin", "pgserver/pginstall/lib", "pgserver/pginstall/share", "pgserver.libs")
"""Of site-packages; the programs find their libraries by relative paths."""

_START_TIMEOUT = 30.0
"""Seconds."""


@contextmanager
def postgres() -> Iterator[str]:
    """Start a server, yield the SQLAlchemy URL of its database, stop it and remove its files.

    It listens on a Unix socket in a folder of its own only.
    """
    # Not pytest's folder: a socket's path has at most 107 characters, and ``nobody`` must reach it.
    folder = Path(tempfile.mkdtemp(prefix="elastic-postgres-"))
    try:
        packages, user = _site_packages(), None
        if os.geteuid() == 0:
            user = _UNPRIVILEGED
            for part in _PARTS:
                shutil.copytree(packages / part, folder / part)
            shutil.chown(folder, user)
            packages = folder
        install = packages / "pgserver" / "pginstall"
        data = folder / "data"
        _run(install, user, "initdb", "-D", data, "-U", "airflow", "-A", "trust", "-E", "UTF8", "--no-sync")
        with _server(install, user, data, socket=folder):
            _run(install, user, "createdb", "-h", folder, "-U", "airflow", "airflow")
            yield f"postgresql+psycopg2://airflow@/airflow?host={folder}"
    finally:
        shutil.rmtree(folder)


def _site_packages() -> Path:
    spec = importlib.util.find_spec("pgserver")
    assert spec is not None, "the wheel pgserver is not installed"
    assert spec.origin is not None
    return Path(spec.origin).parents[1]


@contextmanager
def _server(install: Path, user: str | None, data: Path, socket: Path) -> Iterator[None]:
    """A child process, not a daemon by ``pg_ctl``: it is reaped here, wherever the tests run."""
    options = ["-c", "listen_addresses=", "-c", "fsync=off", "-c", "max_connections=200"]
    command = [str(install / "bin" / "postgres"), "-D", str(data), "-k", str(socket), *options]
    with (data.parent / "log").open("wb") as log, subprocess.Popen(command, user=user, cwd="/", stderr=log) as server:
        try:
            deadline = time.monotonic() + _START_TIMEOUT
            while not _ready(install, socket):
                alive = server.poll() is None
                assert alive and time.monotonic() < deadline, (data.parent / "log").read_text()  # noqa: PT018 # one cause
                time.sleep(0.1)
            yield
        finally:
            server.send_signal(signal.SIGQUIT)


def _ready(install: Path, socket: Path) -> bool:
    command = [str(install / "bin" / "pg_isready"), "--quiet", "-h", str(socket)]
    return subprocess.run(command, check=False).returncode == 0


def _run(install: Path, user: str | None, program: str, *arguments: object) -> None:
    command = [str(install / "bin" / program), *map(str, arguments)]
    done = subprocess.run(command, user=user, cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
