"""The JupyterLab server of a pool, which its keeper starts, starts again, and ends with the pool."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from elastic_runtime.documents import from_json, to_json, write_atomically
from elastic_runtime.errors import ElasticError
from elastic_runtime.pool.folder import ADDRESS, PoolDir
from elastic_runtime.pool.settings import PoolNotebook
from elastic_runtime.printable import printable
from elastic_runtime.retry import Retry, RetryPolicy
from elastic_runtime.run.locking import is_locked, take
from elastic_runtime.run.rundir import LauncherProcess

log = logging.getLogger(__name__)

ENDING = 5.0
"""Seconds that the server has to end its kernels, before it is killed."""
_STARTS = RetryPolicy(first=1.0, longest=60.0)


def lay_down(folder: PoolDir, variables: Mapping[str, str]) -> None:
    """Write what a server of this pool needs, with a new token, for this user alone. Raises OSError.

    Args:
        folder: of the pool.
        variables: of the server's environment, beside those of its keeper.
    """
    token = secrets.token_urlsafe(32)
    server = {"ip": ADDRESS, "port_retries": 0, "open_browser": False, "allow_root": True}
    write_atomically(folder.notebook_token, f"{token}\n")
    write_atomically(folder.notebook_config, to_json({"IdentityProvider": {"token": token}, "ServerApp": server}))
    write_atomically(folder.notebook_variables, to_json(dict(variables)))


class Notebook:
    """The server, as its keeper looks after it. It outlives a keeper that is killed; the next one finds its lock.

    Args:
        folder: of the pool.
        asked: how it was asked for.
    """

    def __init__(self, folder: PoolDir, asked: PoolNotebook) -> None:
        self._folder, self._asked = folder, asked
        self._process: subprocess.Popen[bytes] | None = None
        self._retry, self._due = Retry(_STARTS), 0.0

    def tend(self, now: float) -> None:
        """Start it if it is not there and due.

        Args:
            now: seconds of any clock that does not go back.
        """
        if self._process is not None and (code := self._process.poll()) is not None:
            log.warning("the notebook has ended with code %d; more in %s", code, self._folder.notebook_log)
            self._process = None
        if is_locked(self._folder.notebook_lock) or now < self._due:
            return
        self._due = now + self._retry.failed()
        try:
            self._start()
        except (OSError, ElasticError) as error:
            log.warning("the notebook cannot be started: %s", printable(error))

    def _start(self) -> None:
        variables = from_json(dict[str, str], self._folder.notebook_variables.read_text(encoding="utf-8"))
        with self._folder.notebook_lock.open("a") as lock, self._folder.notebook_log.open("ab") as output:
            if not take(lock.fileno()):
                return
            self._process = subprocess.Popen(
                [
                    *(self._asked.python or sys.executable, "-m", "jupyterlab"),
                    f"--config={self._folder.notebook_config}",
                    f"--ServerApp.port={self._asked.port}",
                    f"--ServerApp.root_dir={Path.home()}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=Path.home(),
                env={**os.environ, **variables},
                start_new_session=True,
                pass_fds=(lock.fileno(),),  # The lock is the server's from now on.
            )
        process = LauncherProcess.of(self._process.pid)
        write_atomically(self._folder.notebook_process, to_json(process))
        log.info("the notebook is at http://%s:%d/lab", ADDRESS, self._asked.port)

    def end(self) -> None:
        """End it, whichever keeper has started it. Blocks for :data:`ENDING` at most."""
        end(self._folder)
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(ENDING)
            end(self._folder, signal.SIGKILL)
            self._process.wait()


def end(folder: PoolDir, number: signal.Signals = signal.SIGTERM) -> None:
    """Send the server of a pool a signal, if it lives."""
    with suppress(OSError, ElasticError, ValueError):
        known = from_json(LauncherProcess, folder.notebook_process.read_text(encoding="utf-8"))
        if is_locked(folder.notebook_lock) and LauncherProcess.of(known.pid) == known:
            os.kill(known.pid, number)
