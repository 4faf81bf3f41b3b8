"""Airflow 2's REST API, as far as the client of Airflow 3's (:mod:`demo_kit.airflow_api`) is used here."""

from __future__ import annotations

from typing import Any

import httpx

from demo_kit.airflow_api import AirflowApi

USER = "admin"
"""Name and password, on a loopback port of a throw-away Airflow."""


class AirflowApi2(AirflowApi):
    """The same calls, with Airflow 2's paths and a password."""

    def healthy(self) -> dict[str, bool]:
        try:
            answer = self._http.get("/api/v1/health")
        except httpx.TransportError:
            return {}
        if answer.status_code != httpx.codes.OK:
            return {}
        return {name: part["status"] == "healthy" for name, part in answer.json().items()}

    def trigger(self, dag_id: str, params: dict[str, object]) -> str:
        return str(self._call("POST", f"/dags/{dag_id}/dagRuns", json={"conf": params})["dag_run_id"])

    def set_task_state(self, dag_id: str, run_id: str, task_id: str, state: str) -> None:
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}"
        self._call("PATCH", path, json={"new_state": state, "dry_run": False})

    def log_lines(self, dag_id: str, run_id: str, task_id: str, try_number: int = 1) -> list[str]:
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/logs/{try_number}"
        answer = self._call("GET", path, params={"full_content": "true"}, headers={"Accept": "application/json"})
        return str(answer["content"]).split("\\n")

    def _request(self, method: str, path: str, *, accept_missing: bool = False, **options: Any) -> Any:
        answer = self._http.request(method, f"/api/v1{path}", auth=(USER, USER), **options)
        if accept_missing and answer.status_code == httpx.codes.NOT_FOUND:
            return None
        if answer.is_error:
            raise RuntimeError(f"{method} {path}: {answer.status_code} {answer.text[:500]}")
        return answer.json()
