"""A real Airflow of our own: API server, scheduler, DAG processor and triggerer as child processes.

It lives in one folder, listens on a free port of the loopback interface, and is gone with :meth:`AirflowStack.stop`.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from demo_kit import processes
from demo_kit.airflow_api import AirflowApi
from demo_kit.processes import Child

COMPONENTS = ("api-server", "scheduler", "dag-processor", "triggerer")
COMPONENTS_OF_2 = ("webserver", "scheduler", "triggerer")
"""Of Airflow 2, whose scheduler processes the DAGs."""
_IN_HEALTH = {
    "api-server": "metadatabase",
    "webserver": "metadatabase",
    "scheduler": "scheduler",
    "dag-processor": "dag_processor",
    "triggerer": "triggerer",
}
"""What the health endpoint calls them; the API server answers for the database."""


class StackFailed(RuntimeError):
    """A component did not start, or ended by itself; the message has the end of its log."""


@dataclass(frozen=True, slots=True)
class StackSettings:
    """Where and how the Airflow runs."""

    python: Path
    """Interpreter of the environment that Airflow is installed in."""
    home: Path
    """AIRFLOW_HOME. Emptied at the start."""
    dags: Path
    """Folder of DAG files."""
    database: str | None = None
    """SQLAlchemy URL; None: SQLite in ``home``."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """More environment for every component, as ``AIRFLOW__SECTION__KEY``."""
    umask: int = -1
    """Of every component; under 0: ours."""
    start_timeout: float = 300.0
    """Seconds until all components are healthy."""
    stop_grace: float = 15.0
    """Seconds from SIGTERM to SIGKILL."""


class AirflowStack:
    """Starts and ends the components; knows nothing of any DAG."""

    def __init__(self, settings: StackSettings) -> None:
        self.settings = settings
        self.mark = secrets.token_hex(8)
        self.url = f"http://127.0.0.1:{_free_port()}"
        self.logs = settings.home / "logs"
        self._environment = self._make_environment()
        self._children: dict[str, Child] = {}

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:  # raised again: nothing half-made stays, whatever ended this
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def start(self, components: Iterable[str] = COMPONENTS) -> None:
        """Empty the home folder, make the database, start the components. Does not wait for them."""
        shutil.rmtree(self.settings.home, ignore_errors=True)
        self.logs.mkdir(parents=True)
        self.command("db", "migrate")
        for component in components:
            self.start_component(component)

    def command(self, *arguments: str) -> None:
        """Have Airflow's command line do something, and wait. Raises StackFailed."""
        done = subprocess.run(
            self._command(*arguments), env=self._environment, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            words = " ".join(arguments[:2])
            raise StackFailed(f"airflow {words} failed:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")

    def start_component(self, component: str) -> None:
        """Start one of :data:`COMPONENTS`, or start it again after it has ended."""
        arguments = {
            "api-server": ("--host", "127.0.0.1", "--port", self.url.rpartition(":")[2]),
            "webserver": ("--hostname", "127.0.0.1", "--port", self.url.rpartition(":")[2], "--workers", "1"),
            "scheduler": ("--skip-serve-logs",),
            "triggerer": ("--skip-serve-logs",),
        }.get(component, ())
        self._children[component] = processes.start(
            component,
            self._command(component, *arguments),
            self._environment,
            self.logs / f"{component}.log",
            self.settings.umask,
        )

    def stop_component(self, component: str) -> None:
        """SIGTERM, and wait; nothing to do when it does not run."""
        if child := self._children.pop(component, None):
            processes.stop([child], self.settings.stop_grace)

    def kill_component(self, component: str) -> None:
        """``kill -9`` of the component and of the processes that it has forked."""
        child = self._children.pop(component)
        os.killpg(child.popen.pid, 9)
        child.popen.wait()

    def wait_until_healthy(self, api: AirflowApi, dag_id: str) -> None:
        """Returns when every component that was started is healthy and the DAG is stored.

        Raises:
            StackFailed: a component has ended, the DAG does not parse, or it took longer than ``start_timeout``.
        """
        deadline = time.monotonic() + self.settings.start_timeout
        while True:
            self.check()
            health = api.healthy()
            missing = [component for component in self._children if not health.get(_IN_HEALTH[component])]
            if not missing:
                if api.has_dag(dag_id):
                    return
                if errors := api.import_errors():
                    raise StackFailed("\n".join(errors))
            if time.monotonic() > deadline:
                raise StackFailed(f"not ready after {self.settings.start_timeout:.0f} s: {missing or dag_id}")
            time.sleep(0.2)

    def check(self) -> None:
        """Raises StackFailed when a component has ended by itself."""
        for child in self._children.values():
            if (code := child.exit_code) is not None:
                raise StackFailed(f"{child.name} ended with {code}:\n{child.log_tail()}")

    def stop(self) -> list[str]:
        """End everything; idempotent. Returns what else had to be ended because it did not go by itself."""
        processes.stop(self._children.values(), self.settings.stop_grace)
        self._children.clear()
        return processes.end_marked(self.mark, grace=10.0)

    def _command(self, *arguments: str) -> list[str]:
        return [str(self.settings.python), "-m", "airflow", *arguments]

    def _make_environment(self) -> dict[str, str]:
        home = self.settings.home
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("AIRFLOW")}
        return (
            inherited
            | {
                processes.MARK: self.mark,
                "AIRFLOW_HOME": str(home),
                "AIRFLOW__API__BASE_URL": self.url,
                "AIRFLOW__API__SECRET_KEY": secrets.token_hex(32),
                "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(32),
                "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
                "AIRFLOW__CORE__DAGS_FOLDER": str(self.settings.dags),
                "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
                "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
                "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
                # Anybody who reaches the loopback port is admin: no password to pass around for a throw-away Airflow.
                "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
                # No DAG file changes here. By default, each is imported again every 30 s: a sixth of a core.
                "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600",
                "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": self.settings.database or f"sqlite:///{home / 'airflow.db'}",
                "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.2",
                "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
                # Else each task seems to last up to 5 s longer than it does.
                "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
                # Two cores do not gain from a BLAS thread pool in each of Airflow's processes.
                "OMP_NUM_THREADS": "1",
            }
            | dict(self.settings.environment)
        )


def _free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
