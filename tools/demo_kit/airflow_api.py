"""The few calls of Airflow's REST API (v2) that are needed here."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import httpx


class AirflowApi:
    """Client of one API server with Airflow's simple auth manager.

    Args:
        url: of the API server, without a path.
        login: name and password; None: it hands a token to anybody (``simple_auth_manager_all_admins``).
    """

    def __init__(self, url: str, login: tuple[str, str] | None = None) -> None:
        self._login = login
        # A connection that were kept would be another one after five idle seconds, in the middle of somebody's test.
        self._http = httpx.Client(base_url=url, timeout=30.0, limits=httpx.Limits(max_keepalive_connections=0))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._http.close()

    def healthy(self) -> dict[str, bool]:
        """Which components are; nothing while the server does not answer yet."""
        try:
            answer = self._http.get("/api/v2/monitor/health")
        except httpx.TransportError:
            return {}
        if answer.status_code != httpx.codes.OK:
            return {}
        return {name: part["status"] == "healthy" for name, part in answer.json().items()}

    def has_dag(self, dag_id: str) -> bool:
        """Whether the DAG processor has stored it."""
        return self._request("GET", f"/dags/{dag_id}", accept_missing=True) is not None

    def import_errors(self) -> list[str]:
        """Stack traces of DAG files that do not parse."""
        return [error["stack_trace"] for error in self._call("GET", "/importErrors")["import_errors"]]

    def trigger(self, dag_id: str, params: dict[str, object]) -> str:
        """Start a run of the DAG; returns its id."""
        body = {"logical_date": None, "conf": params}
        return str(self._call("POST", f"/dags/{dag_id}/dagRuns", json=body)["dag_run_id"])

    def run_state(self, dag_id: str, run_id: str) -> str:
        """One of ``queued``, ``running``, ``success`` and ``failed``."""
        return str(self._call("GET", f"/dags/{dag_id}/dagRuns/{run_id}")["state"])

    def task_instances(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        """Of one run: ``task_id``, ``state``, ``start_date``, ``end_date``, ``try_number`` and more."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances"
        return list(self._call("GET", path)["task_instances"])

    def task_states(self, dag_id: str, run_id: str) -> dict[str, str]:
        """State of each task of one run; ``none`` before it is scheduled."""
        return {task["task_id"]: task["state"] or "none" for task in self.task_instances(dag_id, run_id)}

    def set_task_state(self, dag_id: str, run_id: str, task_id: str, state: str) -> None:
        """What the UI's buttons *mark as failed* and *mark as success* do."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}"
        self._call("PATCH", path, json={"new_state": state})

    def clear(self, dag_id: str, run_id: str, task_id: str, **more: bool) -> None:
        """What the UI's button *clear* does for one task: end it where it is, and try it anew.

        Args:
            dag_id: of the DAG.
            run_id: of the DAG run.
            task_id: of the task.
            more: fields of the dialog, as ``include_downstream``.
        """
        body = {"dry_run": False, "dag_run_id": run_id, "task_ids": [task_id], "reset_dag_runs": True}
        self._call("POST", f"/dags/{dag_id}/clearTaskInstances", json=body | {"only_failed": False} | more)

    def pause(self, dag_id: str, *, paused: bool) -> None:
        """Pause the DAG, or let it go on."""
        self._call("PATCH", f"/dags/{dag_id}", json={"is_paused": paused})

    def version(self) -> tuple[int, int]:
        """Of the Airflow: major and minor."""
        major, minor, *_ = self._call("GET", "/version")["version"].split(".")
        return int(major), int(minor)

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value") -> Any:
        """A task's XCom; None when there is none."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/{key}"
        answer = self._request("GET", path, accept_missing=True, params={"deserialize": "true"})
        return None if answer is None else answer["value"]

    def runs(self, dag_id: str, **filters: str) -> list[dict[str, Any]]:
        """The DAG's, the earliest first: ``dag_run_id``, ``state``, ``conf`` and more."""
        answer = self._call("GET", f"/dags/{dag_id}/dagRuns", params={"order_by": "run_after", **filters})
        return list(answer["dag_runs"])

    def succeeded(self, dag_id: str) -> list[str]:
        """Ids of the DAG's runs that have, the earliest first."""
        return [run["dag_run_id"] for run in self.runs(dag_id, state="success")]

    def state_store(self, dag_id: str, run_id: str, task_id: str) -> dict[str, Any]:
        """What a task remembers between its tries, as the UI shows it."""
        answer = self._call("GET", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/state-store")
        return {entry["key"]: entry["value"] for entry in answer["task_state_store"]}

    def question(self, dag_id: str, run_id: str, task_id: str) -> dict[str, Any]:
        """What a task asks people: ``subject``, ``body``, ``options`` and more."""
        return dict(self._call("GET", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/-1/hitlDetails"))

    def answer(self, dag_id: str, run_id: str, task_id: str, option: str) -> None:
        """What a person chooses."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/-1/hitlDetails"
        self._call("PATCH", path, json={"chosen_options": [option], "params_input": {}})

    def set_pool(self, name: str, slots: int) -> None:
        """Make a pool, or give it another size."""
        body = {"name": name, "slots": slots, "description": "", "include_deferred": False}  # Airflow 3.0 wants all
        if self._request("GET", f"/pools/{name}", accept_missing=True) is None:
            self._call("POST", "/pools", json=body)
        else:
            self._call("PATCH", f"/pools/{name}", json=body)

    def rendered_fields(self, dag_id: str, run_id: str, task_id: str) -> dict[str, Any]:
        """Of a task that has run, as the UI shows them."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}"
        return dict(self._call("GET", path)["rendered_fields"])

    def log_lines(self, dag_id: str, run_id: str, task_id: str, try_number: int = 1) -> list[str]:
        """A task's log as the UI shows it, where an entry may have several lines."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/logs/{try_number}"
        answer = self._call("GET", path, params={"full_content": "true"}, headers={"Accept": "application/json"})
        told = (entry.get("event", "") if isinstance(entry, dict) else entry for entry in answer["content"])
        return [line for text in told for line in str(text).split("\n")]

    def token(self) -> str:
        """A new one, which a browser may send as its cookie, too."""
        if self._login is None:
            answer = self._http.get("/auth/token")
        else:
            name, password = self._login
            answer = self._http.post("/auth/token", json={"username": name, "password": password})
        return str(answer.raise_for_status().json()["access_token"])

    def _call(self, method: str, path: str, **options: Any) -> Any:
        return self._request(method, path, **options)

    def _request(self, method: str, path: str, *, accept_missing: bool = False, **options: Any) -> Any:
        if "Authorization" not in self._http.headers:
            self._http.headers["Authorization"] = f"Bearer {self.token()}"
        answer = self._http.request(method, f"/api/v2{path}", **options)
        if accept_missing and answer.status_code == httpx.codes.NOT_FOUND:
            return None
        if answer.is_error:
            raise RuntimeError(f"{method} {path}: {answer.status_code} {answer.text[:500]}")
        return answer.json()
