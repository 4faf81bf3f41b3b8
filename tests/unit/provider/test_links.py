"""Links from a training task's page: only where the deployment has said where to, and only to web pages."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from airflow.providers.common.compat.sdk import DAG, XCom
from airflow.serialization.serialized_objects import DagSerialization

from elastic_training.clusters.fake import FakeCluster
from elastic_training.links import LINKS, CheckpointsLink, ReportLink, TrainingLogLink, TrainingRunLink, address
from elastic_training.operators.elastic_horovod import ElasticHorovodOperator
from tests.unit.provider.operator_bench import NAME, deferred, operator, run_in, trying

KNOWN = {"run": "nightly-train", "dag_id": "night ly&x=1", "namespace": "", "prefix": "runs/a b", "try_number": 1}
CONFIG = "AIRFLOW__ELASTIC_TRAINING__"


@pytest.mark.parametrize(
    ("template", "made"),
    [
        ("https://logs/{run}?try={try_number}", "https://logs/nightly-train?try=1"),
        ("https://logs/?q={dag_id}", "https://logs/?q=night%20ly%26x%3D1"),
        ("HTTPS://store/{prefix}/", "HTTPS://store/runs/a%20b/"),
        ("https://fixed/page", "https://fixed/page"),
        ("", None),
        ("https://logs/{namespace}", None),
        ("https://logs/{unknown}", None),
        ("https://logs/{}", None),
        ("https://logs/{run.__class__}", "https://logs/{run.__class__}"),
        ("javascript:alert('{run}')", None),
        ("data:text/html,{run}", None),
        ("{run}", None),
        ("https://logs/" + "a" * 3000, None),
    ],
)
def test_an_address_is_made_of_what_is_known(template: str, made: str | None) -> None:
    assert address(template, KNOWN) == made


def kept(task: Any, pushed: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What the links say, as Airflow asks them at the end of a task, or in Airflow 2's web server."""

    def get_value(*, key: str, ti_key: Any) -> Any:
        assert ti_key == "this try"
        return pushed.get(key)

    monkeypatch.setattr(XCom, "get_value", get_value)
    return {link.name: link.get_link(task, ti_key="this try") for link in task.operator_extra_links}


def test_without_configuration_there_is_the_report_of_this_airflow(
    fake: FakeCluster, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example/team/")
    training = operator(checkpoint_uri=store, deferrable=True)
    deferred(training, ti := trying())
    assert set(ti.pushed) == {"run_name", "cluster", ReportLink.xcom_key}
    links = kept(training, ti.pushed, monkeypatch)
    assert links.pop("Report") == (
        "/team/elastic-training/report?dag_id=nightly&run_id=manual__2026-11-21T08%3A00%3A00%2B00%3A00"
        "&task_id=train&map_index=-1&try_number=1"
    )
    assert set(links.values()) == {""}


def test_an_airflow_that_shows_no_pages_has_no_report_to_lead_to(
    fake: FakeCluster, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic_training.links.has_pages", lambda: False)
    deferred(operator(checkpoint_uri=store, deferrable=True), ti := trying())
    assert set(ti.pushed) == {"run_name", "cluster"}


def test_a_task_has_them_once_it_has_its_run(fake: FakeCluster, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{CONFIG}RUN_URL", "https://board/{cluster}/{run}/{uid}")
    monkeypatch.setenv(f"{CONFIG}LOG_URL", "https://logs/{dag_id}/{run_id}/{task_id}/{map_index}/{try_number}")
    monkeypatch.setenv(f"{CONFIG}CHECKPOINT_URL", "https://files/?at={checkpoint}")
    monkeypatch.setenv(f"{CONFIG}REPORT_URL", "https://files/{prefix}?try={try_number}")
    training = operator(checkpoint_uri=store, deferrable=True)
    deferred(training, ti := trying())
    spec = run_in(fake).spec
    assert spec.checkpoint is not None
    links = kept(training, ti.pushed, monkeypatch)
    report = links.pop("Report")
    assert report.startswith(f"https://files{quote(urlsplit(store).path)}/reports/")
    assert report.endswith(".t1.html?try=1")
    assert links == {
        "Training run": f"https://board/local/{NAME}/{spec.uid}",
        "Training log": "https://logs/nightly/manual__2026-11-21T08%3A00%3A00%2B00%3A00/train/-1/1",
        "Checkpoints": f"https://files/?at={spec.checkpoint.uri.replace(':', '%3A').replace('/', '%2F')}",
    }


def test_a_training_without_checkpoints_has_no_link_to_them(fake: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{CONFIG}CHECKPOINT_URL", "https://files/")
    deferred(operator(deferrable=True), ti := trying())
    assert CheckpointsLink.xcom_key not in ti.pushed


def test_without_xcoms_there_are_none(fake: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{CONFIG}RUN_URL", "https://board/{run}")
    deferred(operator(do_xcom_push=False, deferrable=True), ti := trying())
    assert ti.pushed == {}


def test_the_serialised_dag_tells_airflow_where_they_are_kept() -> None:
    with DAG("nightly", schedule=None) as dag:
        operator()
    (task,) = DagSerialization.to_dict(dag)["dag"]["tasks"]
    assert task["__var"]["_operator_extra_links"] == {link.name: link.xcom_key for link in LINKS}
    assert {TrainingRunLink, TrainingLogLink, CheckpointsLink, ReportLink} == {type(link) for link in LINKS}


def test_the_process_of_a_task_pushes_no_link_a_second_time() -> None:
    """Airflow 3 asks a task's links once it is over: an XCom that was not there was an error in the log, and pushed."""
    task = operator()
    assert len(task.operator_extra_links) == len(LINKS) == len(ElasticHorovodOperator.operator_extra_links)
    assert list(task.prepare_for_execution().operator_extra_links) == []
    with DAG("nightly", schedule=None) as dag:
        ElasticHorovodOperator.partial(task_id="mapped", workers={"min": 1}).expand(command=[["true"], ["false"]])
    mapped = dag.get_task("mapped")
    assert len(mapped.operator_extra_links) == len(LINKS)
    assert list(mapped.unmap({"command": ["true"]}).operator_extra_links) == []
