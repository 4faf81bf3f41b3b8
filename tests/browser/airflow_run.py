"""Trainings of a real Airflow on this machine, and the people who look at them in a browser."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from airflow.api_fastapi.auth.managers.base_auth_manager import COOKIE_NAME_JWT_TOKEN

from demo_kit.airflow_api import AirflowApi
from demo_kit.airflow_stack import AirflowStack
from demo_kit.digits_run import DEPLOYMENT, FINAL, local_trainings
from demo_kit.trainings import LocalTrainings
from elastic_runtime.run.status import Status
from elastic_training.identity.naming import run_name
from tests.airflow.real_airflow import REPOSITORY, TRAINER, stack_without
from tests.paced import SCRIPTS, PacedRun, Script, until

DAG_ID, TASK_ID = "image_classifier", "train"
POOL, POOLED = "team-a", ("digits", "nightly")
"""A pool, and the DAGs whose trainings share it, in the same file."""
HELD_AT = 21
"""Step at which the run stands that is only looked at."""
PEOPLE = (ADMIN := ("ann", "of-ann")), ("vic", "of-vic")
"""Names and passwords; vic is a viewer."""


class RunInAirflow(PacedRun):
    """The training of one DAG run, started by this object's making."""

    max_wait = 300.0

    def __init__(self, place: Place, base: Path, script: Script, dag_id: str = DAG_ID) -> None:
        super().__init__(base, script)
        self._place, self.dag_id = place, dag_id
        params = {"script": str(SCRIPTS / script.name), "pace": script.pace(base), "checkpoints": str(base / "kept")}
        with place.api() as api:
            self.run_id = api.trigger(dag_id, params)
        self.name = run_name(dag_id, self.run_id, TASK_ID, deployment=DEPLOYMENT)

    def look(self) -> Status | None:
        return self._place.trainings.status(self.name)

    def log(self) -> str:
        return "\n".join(self._place.trainings.log(self.name))

    def is_over(self) -> bool:
        return (status := self.look()) is not None and status.phase.final

    def wait_until_over(self, state: str) -> None:
        """Await that the DAG run has ended so."""

        def end() -> str | None:
            found = api.run_state(self.dag_id, self.run_id)
            return found if found in FINAL else None

        with self._place.api() as api:
            found = until(end, lambda: self.report("the DAG run ends"), max_wait=self.max_wait, pause=0.3)
        assert found == state, self.report(f"the DAG run ended as {found}")

    @property
    def ids(self) -> dict[str, Any]:
        """Of its task instance."""
        return {"dag_id": self.dag_id, "run_id": self.run_id, "task_id": TASK_ID, "map_index": -1}

    @property
    def page(self) -> str:
        """Path of the run's page."""
        return f"/elastic-training/task?{urlencode(self.ids)}"

    @property
    def in_airflow(self) -> str:
        """Path of the task instance's own page in Airflow's UI."""
        return f"/dags/{self.dag_id}/runs/{quote(self.run_id, safe='')}/tasks/{TASK_ID}"


@dataclass(frozen=True)
class Place:
    """A real Airflow, and a browser."""

    browser: Any
    stack: AirflowStack
    trainings: LocalTrainings
    tokens: Mapping[str, str]
    """By person."""
    folder: Path
    """For the runs' own files."""

    def start(self, name: str, script: Script, dag_id: str = DAG_ID) -> RunInAirflow:
        """A run of the DAG."""
        return RunInAirflow(self, self.folder / name, script, dag_id)

    def api(self) -> AirflowApi:
        """Airflow's, for the admin."""
        return AirflowApi(self.stack.url, ADMIN)

    @contextmanager
    def visit(self, person: str | None, path: str, **options: Any) -> Iterator[Any]:
        """A page that this person has open, who is logged in to Airflow; None: nobody is.

        Args:
            person: one of :data:`PEOPLE`.
            path: in Airflow, or anybody's whole address.
            options: of the browser.
        """
        with self.browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options}) as context:
            if person is not None:
                cookie = {"name": COOKIE_NAME_JWT_TOKEN, "value": self.tokens[person], "url": self.stack.url}
                context.add_cookies([{**cookie, "httpOnly": True, "sameSite": "Lax"}])
            page = context.new_page()
            page.goto(path if "://" in path else self.stack.url + path)
            yield page


@contextmanager
def real_airflow(browser: Any, folder: Path) -> Iterator[Place]:
    """With the DAG of ``dags`` and the examples. Without a triggerer: the task follows its run by itself."""
    passwords = folder / "passwords.json"
    passwords.write_text(json.dumps(dict(PEOPLE)))
    trainings = local_trainings(Path(TRAINER), folder / "home")
    connection = {"place": "local", "checkpoint_uri": f"file://{folder}/checkpoints"}
    more = {
        "AIRFLOW_CONN_TRAINING": json.dumps({"conn_type": "elastic_training", "extra": connection}),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "ann:admin,vic:viewer",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
    }
    dags = folder / "dags"
    shutil.copytree(Path(__file__).parent / "dags", dags)
    shutil.copytree(REPOSITORY / "dags" / "examples", dags / "examples")
    with stack_without(("triggerer",), folder / "home", trainings, dags, (DAG_ID,), login=ADMIN, **more) as stack:
        try:
            yield Place(browser, stack, trainings, dict(_tokens(stack.url)), folder)
        finally:
            trainings.end_all()


def _tokens(url: str) -> Iterator[tuple[str, str]]:
    for login in PEOPLE:
        with AirflowApi(url, login) as api:
            yield login[0], api.token()
