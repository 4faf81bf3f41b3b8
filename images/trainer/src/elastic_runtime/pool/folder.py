"""The folder of a pool on this machine, beside those of the runs.

=================  =========================  ===============================================================
file               written by                 meaning
=================  =========================  ===============================================================
``pool.json``      who brings the pool up     the :class:`~elastic_runtime.pool.settings.PoolSettings`
``tls/``           who brings the pool up     the pool's certificate authority and certificates
``keeper.json``    keeper                     :class:`KeeperProcess`: where to dial it
``status.json``    keeper                     the :class:`~elastic_runtime.pool.status.PoolStatus`
``lock``           keeper, ``flock``          held as long as it lives
``host.lock``      host, ``flock``            held as long as it lives
``agents/``        host                       certificates of the runs that have workers
``notebook.*``     who brings the pool up     of a notebook: its token, its configuration with the token, its variables;
                   and its keeper             its lock, process and log
``log``            keeper, host and agents    lines of their own; those of ranks are in the log of their run
=================  =========================  ===============================================================
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from elastic_runtime.documents import from_json, to_json, write_atomically
from elastic_runtime.errors import InvalidDocument, RunNotFound
from elastic_runtime.net import certificates
from elastic_runtime.pool.settings import PoolSettings
from elastic_runtime.pool.status import PoolStatus
from elastic_runtime.run.locking import is_locked
from elastic_runtime.run.reading import read_bytes
from elastic_runtime.run.rundir import LauncherProcess

ADDRESS = "127.0.0.1"
"""Where a keeper of this machine listens."""
VALIDITY = timedelta(days=3650)
"""Of the pool's certificates, which are in a folder that only its user can read."""


@dataclass(frozen=True, slots=True)
class KeeperProcess:
    """The keeper of a pool on this machine."""

    port: int
    process: LauncherProcess


def pool_folder(root: Path, name: str) -> PoolDir:
    """Return the folder of a pool, beside the folders of runs. No run is called so."""
    return PoolDir(root / f".pool.{name}")


class PoolDir:
    """Paths of a pool's folder, and access to its documents.

    Args:
        path: of the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tls, self.agents, self.log = path / "tls", path / "agents", path / "log"
        self.lock, self.host_lock = path / "lock", path / "host.lock"
        self.notebook_token, self.notebook_config = path / "notebook.token", path / "notebook.config.json"
        self.notebook_variables, self.notebook_process = path / "notebook.variables", path / "notebook.process"
        self.notebook_lock, self.notebook_log = path / "notebook.lock", path / "notebook.log"

    def exists(self) -> bool:
        """Whether the pool is up."""
        return (self.path / "pool.json").exists()

    def create(self, settings: PoolSettings) -> None:
        """Lay the pool down; the last file written makes it exist. Raises OSError."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        certificates.remove(self.tls)  # Of one that was laid down by half.
        certificates.create(self.tls, [ADDRESS], VALIDITY)
        self.write_settings(settings)

    def write_settings(self, settings: PoolSettings) -> None:
        """The keeper of a pool that is up looks for another size. Raises OSError."""
        write_atomically(self.path / "pool.json", to_json(settings))

    def withdraw(self) -> None:
        """The pool is not up any more."""
        (self.path / "pool.json").unlink(missing_ok=True)

    def settings(self) -> PoolSettings:
        """Read the settings. Raise RunNotFound: it is not up; or InvalidDocument."""
        return from_json(PoolSettings, self._read("pool.json"))

    def status(self) -> PoolStatus:
        """Read the status. Raise RunNotFound: there is none yet; or InvalidDocument."""
        return from_json(PoolStatus, self._read("status.json"))

    def write_status(self, status: PoolStatus) -> None:
        """For the keeper alone. Raises OSError."""
        write_atomically(self.path / "status.json", to_json(status))

    def keeper(self) -> KeeperProcess:
        """Read where the keeper is, or was. Raise RunNotFound or InvalidDocument."""
        return from_json(KeeperProcess, self._read("keeper.json"))

    def write_keeper(self, keeper: KeeperProcess) -> None:
        """For the keeper alone. Raises OSError."""
        write_atomically(self.path / "keeper.json", to_json(keeper))

    def has_keeper(self) -> bool:
        """Whether a keeper lives."""
        return is_locked(self.lock)

    def has_host(self) -> bool:
        """Whether a host lives."""
        return is_locked(self.host_lock)

    def has_notebook(self) -> bool:
        """Whether a notebook's server lives."""
        return is_locked(self.notebook_lock)

    def start(
        self, module: str, python: str = sys.executable, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a process of this pool, in a session of its own. One too many ends by itself.

        Args:
            module: to run, with this folder as argument.
            python: interpreter.
            environment: of the process; None: ours.

        Raises:
            OSError: the interpreter cannot be started.
        """
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [python, "-m", module, str(self.path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.path,
                env=dict(os.environ if environment is None else environment),
                start_new_session=True,
            )

    def _read(self, name: str) -> str:
        try:
            return read_bytes(self.path / name).decode()
        except RunNotFound:
            raise RunNotFound(f"no {name} in {self.path}: the pool is not up") from None
        except UnicodeDecodeError as error:
            raise InvalidDocument(f"{self.path / name} is not text: {error.reason}") from error
