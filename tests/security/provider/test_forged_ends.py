"""Somebody who can write into a place makes up the end of a run, for the API server to keep."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from elastic_runtime.documents import to_json
from elastic_runtime.kubernetes.objects import Object
from elastic_runtime.run import runobjects
from elastic_runtime.run.headline import Headline
from elastic_runtime.run.runobjects import Part
from elastic_runtime.run.spec import RunSpec, WorkersSpec
from elastic_runtime.run.status import Phase
from elastic_training import archive
from elastic_training.clusters.fake import FakeCluster
from elastic_training.clusters.kubernetes.status.judgement import summaries
from elastic_training.clusters.registry import substituted
from elastic_training.concurrency.bridge import run
from elastic_training.identity.naming import TaskIdentity
from elastic_training.identity.ownership import Owner
from tests.unit.provider.operator_bench import NAME, operator, trying
from tests.unit.provider.page_bench import API, IDS, Rendered, rendering, seeing

CREATED = {"uid": "u", "resourceVersion": "1", "creationTimestamp": "2026-11-26T19:00:00Z"}


@pytest.fixture(autouse=True)
def rendered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store: str) -> Rendered:
    monkeypatch.setenv("AIRFLOW__ELASTIC_TRAINING__ARCHIVE", store)
    return rendering(monkeypatch, tmp_path, store)


def forge(place: FakeCluster, **ids: str) -> None:
    """A run that failed, of the try of a task that has never heard of it."""
    owner = Owner(**{**IDS, **ids}, map_index=-1, try_number=1, nonce="forged")
    spec = RunSpec("forged", "forged", ("true",), WorkersSpec(1, 1, 1))
    run(place.claim(spec, owner.text()))
    place.succeed("forged")


def test_an_end_that_is_kept_is_not_written_over(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    fake.script(lambda: fake.succeed(NAME))
    operator(checkpoint_uri=store, on_finish="delete").execute({"ti": trying()})
    forge(fake)
    assert seeing(monkeypatch).get(f"{API}/runs").json()["total"] == 1
    found = archive.read(IDS["dag_id"], IDS["run_id"], IDS["task_id"])
    assert found is not None
    assert found.name == NAME


@pytest.mark.parametrize("task_id", ["train", "prepare"])
def test_nothing_is_kept_of_tasks_that_do_not_train_there(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch, rendered: Rendered, task_id: str
) -> None:
    rendered[("nightly", IDS["run_id"], "prepare", -1)] = {"bash_command": "true"}
    monkeypatch.setattr("elastic_training.console.places.known_places", lambda: ("elsewhere",))
    with substituted("elsewhere", elsewhere := FakeCluster()):
        forge(elsewhere, task_id=task_id)
        assert seeing(monkeypatch).get(f"{API}/runs").json()["total"] == 1
    assert archive.read(IDS["dag_id"], IDS["run_id"], task_id) is None


def test_a_status_of_another_name_tells_nothing_of_a_run() -> None:
    """Or retention would remove a run by the age that anybody's ConfigMap tells, under the labels of its status."""
    now = datetime.now(UTC)
    task = TaskIdentity("payroll", "r", "train")

    def made(name: str, part: str, **annotations: str) -> Object:
        labels = runobjects.labels(task.name, "u1", Part(part))
        return Object({"metadata": {"name": name, "labels": labels, "annotations": annotations, **CREATED}})

    def told(finished: datetime) -> dict[str, str]:
        return {
            runobjects.HEADLINE: to_json(Headline(task.name, "u1", Phase.SUCCEEDED, "", finished, "", finished=now))
        }

    owner = Owner(task.dag_id, task.run_id, task.task_id, -1, 1, "nonce").text()
    root = made(task.name, "root", **{runobjects.OWNER: owner, runobjects.COMPLETE: ""})
    honest = made(f"{task.name}-status", "status", **told(now))
    forged = made("zzz", "status", **told(now - timedelta(days=900)))
    for maps in ([root, honest, forged], [root, forged, honest]):
        [found] = summaries(maps, [])[0]
        assert now - found.headline.updated < timedelta(days=1)
    assert summaries([root, forged], [])[0] == []
