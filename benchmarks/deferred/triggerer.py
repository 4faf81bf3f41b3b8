"""A real Airflow triggerer with N deferred task instances on PostgreSQL.

Of Airflow, that is all there is: no scheduler and no task process, so that nothing else is in the figures. The
triggerer takes the triggers from the database, runs them, and puts the task instances whose triggers have fired into
the state *scheduled* again, with the time at which it did so.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg2

from demo_kit import processes
from tests.airflow.postgres import postgres

DAG_ID = "deferred"
TASK_ID = "wait"
RUN_ID = "manual__benchmark"
CONNECTION = "bench_cluster"
"""Id of the Airflow connection to the API server."""
_DAG = f"""
from airflow.sdk import DAG
from airflow.providers.standard.operators.empty import EmptyOperator

with DAG("{DAG_ID}", schedule=None):
    EmptyOperator(task_id="{TASK_ID}")
"""
_REPOSITORY = Path(__file__).resolve().parents[2]
_GRACE = 30.0


@dataclass(frozen=True, slots=True)
class TriggerSpec:
    """A trigger as :mod:`benchmarks.deferred.seed` makes it."""

    classpath: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Airflow:
    """Database and settings; a triggerer at a time."""

    home: Path
    environment: Mapping[str, str]
    extras: Mapping[str, Any]
    """Of the connection :data:`CONNECTION`."""
    _socket: str
    """Folder of PostgreSQL's socket."""

    def defer(self, triggers: Sequence[TriggerSpec]) -> None:
        """Make the database hold exactly these, each with a task instance whose map index is its place here."""
        described = json.dumps([{"classpath": each.classpath, "kwargs": dict(each.kwargs)} for each in triggers])
        self._run("-m", "benchmarks.deferred.seed", text=described)

    @contextmanager
    def triggerer(self, capacity: int) -> Iterator[processes.Child]:
        """``airflow triggerer``, ended as a deployment would end it."""
        command = [sys.executable, "-m", "airflow", "triggerer", "--skip-serve-logs", f"--capacity={capacity}"]
        child = processes.start("triggerer", command, self.environment, self.home / "triggerer.log")
        try:
            yield child
        finally:
            processes.stop([child], _GRACE)

    async def taken(self) -> int:
        """Triggers that the triggerer has been given."""
        rows = await asyncio.to_thread(self._query, "select count(*) from trigger where triggerer_id is not null")
        return int(rows[0][0])

    async def resumed(self) -> dict[int, datetime]:
        """Map index of each task instance whose trigger has fired, and when it was put back to *scheduled*."""
        query = "select map_index, scheduled_dttm from task_instance where state = 'scheduled'"
        return {int(index): moment for index, moment in await asyncio.to_thread(self._query, query)}

    async def states(self) -> dict[str, int]:
        """How many task instances are in which state."""
        query = "select state, count(*) from task_instance group by state"
        return {str(state): int(count) for state, count in await asyncio.to_thread(self._query, query)}

    def _query(self, text: str) -> list[tuple[Any, ...]]:
        connection = psycopg2.connect(host=self._socket, user="airflow", dbname="airflow")
        try:
            with connection, connection.cursor() as cursor:
                cursor.execute(text)
                return list(cursor.fetchall())
        finally:
            connection.close()

    def _run(self, *arguments: str, text: str = "") -> None:
        command = [sys.executable, *arguments]
        done = subprocess.run(
            command, env=dict(self.environment), input=text, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(arguments)}: {done.stdout[-2000:]}{done.stderr[-3000:]}")


@contextmanager
def airflow(home: Path, kubeconfig: Path) -> Iterator[Airflow]:
    """Start PostgreSQL, make Airflow's tables, store the DAG.

    Args:
        home: new folder, for AIRFLOW_HOME.
        kubeconfig: what the connection :data:`CONNECTION` names.
    """
    (home / "dags").mkdir(parents=True)
    (home / "dags" / "deferred.py").write_text(_DAG)
    with postgres() as database:
        extras = {"kube_config_path": str(kubeconfig)}
        made = Airflow(home, _environment(home, extras, database), extras, database.partition("host=")[2])
        made._run("-m", "airflow", "db", "migrate")
        made._run("-m", "airflow", "dags", "reserialize")
        yield made


def _environment(home: Path, extras: Mapping[str, Any], database: str) -> dict[str, str]:
    inherited = {key: value for key, value in os.environ.items() if "AIRFLOW" not in key and "proxy" not in key.lower()}
    connection = {"conn_type": "kubernetes", "extra": extras}
    return inherited | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__API__SECRET_KEY": secrets.token_hex(32),
        "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(32),
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__FERNET_KEY": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database,
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        f"AIRFLOW_CONN_{CONNECTION.upper()}": json.dumps(connection),
        "PYTHONPATH": os.pathsep.join((str(_REPOSITORY), str(_REPOSITORY / "tools"))),
    }
