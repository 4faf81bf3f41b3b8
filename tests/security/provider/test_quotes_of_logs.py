"""A run whose launcher died: its reason quotes the run's log, which is for those who may read the task's log."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity

from elastic_runtime.clock import utc_now
from elastic_runtime.kubernetes.diagnosis import cause, of_pod
from elastic_runtime.kubernetes.objects import Pod
from elastic_runtime.run.rundir import RunDir
from elastic_runtime.run.runobjects import COULD_NOT_RUN
from elastic_runtime.run.spec import RunSpec, WorkersSpec
from elastic_runtime.run.status import Event, EventKind, Phase, Status
from elastic_runtime.run.status_failure import without_quotes
from elastic_training.clusters.kubernetes.status.diagnosis import about
from elastic_training.identity.deployment import deployment
from elastic_training.identity.naming import TaskIdentity
from elastic_training.identity.ownership import Owner
from elastic_training.redaction.free_text import without_logs
from tests.unit.provider.page_bench import API, IDS, PREFIX, rendering, seeing, without_rights

WORD, SECRET = "patient-4711", "sown-in-the-log"
LINE = f"x-worker-1 [0]<stdout>: {WORD}: positive, password {SECRET}"
NOW = "2026-11-26T20:00:00Z"


def lost(root: Path, line: str) -> None:
    """A run of this machine whose launcher was killed an hour ago."""
    task = TaskIdentity(IDS["dag_id"], IDS["run_id"], IDS["task_id"], -1, deployment())
    spec = RunSpec(task.name, "uid", ("python",), WorkersSpec(1, 2, 4), environment={"DB_PASSWORD": SECRET})
    root.mkdir(mode=0o700)
    folder = RunDir(root / task.name)
    folder.create(spec, Owner(**IDS, map_index=-1, try_number=1, nonce="nonce", deployment=deployment()).text())
    began = datetime.now(UTC) - timedelta(hours=1)
    folder.write_status(Status(task.name, "uid", Phase.RUNNING, "trains", began, started=began, world_size=2))
    folder.log.write_text(f"{line}\n")


class TestOnThisMachine:
    @pytest.fixture(autouse=True)
    def root(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        rendering(monkeypatch, tmp_path / "root")
        lost(tmp_path / "root", f"{NOW} {LINE}")

    def test_who_may_not_read_the_log_reads_none_of_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        client = seeing(monkeypatch)
        without_rights(monkeypatch, DagAccessEntity.TASK_LOGS)
        page, report = client.get(f"{API}/task", params=IDS), client.get(f"{PREFIX}/report", params=IDS)
        assert page.json()["status"]["reason"] == "the launcher is gone without a final status"
        assert WORD not in page.text + report.text

    def test_nor_does_anybody_in_the_list_by_looking_or_by_searching(self, monkeypatch: pytest.MonkeyPatch) -> None:
        client = seeing(monkeypatch)
        listed = client.get(f"{API}/runs")
        assert listed.json()["runs"][0]["reason"] == "the launcher is gone without a final status"
        assert WORD not in listed.text
        assert client.get(f"{API}/runs", params={"search": WORD}).json()["total"] == 0

    def test_who_may_reads_it_without_the_run_s_secrets(self, monkeypatch: pytest.MonkeyPatch) -> None:
        shown = seeing(monkeypatch).get(f"{API}/task", params=IDS)
        assert f"{WORD}: positive, password ***" in shown.json()["status"]["reason"]
        assert SECRET not in shown.text


def dead(code: int, reason: str, container: str = "launcher") -> Pod:
    """A pod with the end of its log as its message, as Kubernetes has it without one of the container's own."""
    end = {"exitCode": code, "reason": reason, "finishedAt": NOW, "message": f"{NOW} {LINE}\n"}
    state = {"name": container, "restartCount": 0, "state": {"terminated": end}}
    return Pod(
        {
            "metadata": {"name": "x", "uid": "1", "creationTimestamp": NOW, "labels": {}},
            "status": {"phase": "Failed", "containerStatuses": [state]},
        }
    )


@pytest.mark.parametrize("code", [1, 126, 127, 137, COULD_NOT_RUN])
@pytest.mark.parametrize("reason", ["Error", "OOMKilled"])
def test_of_a_launcher_s_pod(code: int, reason: str) -> None:
    why = about([dead(code, reason)], [], None, utc_now())
    assert why is not None
    shown = without_quotes(f"the launcher is being replaced: {why}")
    assert shown.startswith("the launcher is being replaced: the launcher")
    assert WORD not in shown


def test_of_a_worker_s_pod() -> None:
    said = str(cause(of_pod(dead(1, "Error", "worker"), "")))
    assert WORD in said
    assert without_quotes(f"waits: Kubernetes says of worker pod x: {said}").endswith("ended with code 1")


@pytest.mark.parametrize("kind", EventKind)
def test_of_an_event(kind: EventKind) -> None:
    said = str(cause(of_pod(dead(1, "Error", "worker"), "")))
    status = Status("run", "uid", Phase.SUSPENDED, said, utc_now())
    assert WORD not in repr(without_logs(replace(status, events=(Event(utc_now(), kind, said),))))
