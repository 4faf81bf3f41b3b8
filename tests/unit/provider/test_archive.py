"""What is kept of a run: in whichever way it ends, found again by Airflow's ids, also of earlier tries."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import boto3
import pytest
from airflow.providers.common.compat.sdk import DAG, AirflowTaskTimeout

from elastic_runtime.clock import utc_now
from elastic_runtime.errors import FailureKind
from elastic_runtime.launcher.record.series import noted
from elastic_runtime.prices.book import SHIPPED
from elastic_runtime.run.status import Phase, Series, Usage
from elastic_training import archive
from elastic_training.archive import Kept, reading
from elastic_training.clusters.fake import FakeCluster
from elastic_training.clusters.types import RunRef
from elastic_training.concurrency.bridge import run
from elastic_training.exceptions import TrainingFailed
from elastic_training.lifecycle.task_memory import TaskMemory
from elastic_training.operators.end_training import CancelTrainingOperator, DeleteTrainingOperator
from tests.report_data import data_of
from tests.s3_server import CREDENTIALS, s3_server
from tests.unit.provider.fake_airflow import FakeAirflow
from tests.unit.provider.fakes import FakeTaskInstance
from tests.unit.provider.operator_bench import NAME, deferred, operator, ref_in, run_in, trying
from tests.unit.provider.virtual_time import run_virtually


@pytest.fixture(scope="module")
def s3_url() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture(autouse=True)
def rendered(monkeypatch: pytest.MonkeyPatch, store: str) -> dict[str, Any]:
    """The fields of the task, as Airflow's database would have them."""
    fields: dict[str, Any] = {"checkpoint_uri": store, "checkpoint_conn_id": None, "cluster": "local"}
    monkeypatch.setattr(reading, "rendered_fields", lambda *_: [fields])
    return fields


def kept(number: int | None = None, ti: FakeTaskInstance | None = None) -> Kept | None:
    ti = ti or trying()
    return archive.read(ti.dag_id, ti.run_id, ti.task_id, ti.map_index, number)


def the(number: int | None = None) -> Kept:
    found = kept(number)
    assert found is not None
    return found


def text_of(found: Kept) -> str:
    return Path(unquote(urlsplit(found.report_url).path)).read_text()


class TestWaysOfEnding:
    def test_success(self, fake: FakeCluster, store: str) -> None:
        curve = noted({"loss": Series()}, {"loss": 0.5}, 40, utc_now())
        fake.script(lambda: fake.publish(NAME, step=40, series=curve), lambda: fake.succeed(NAME))
        result = operator(checkpoint_uri=store).execute({"ti": trying()})
        found = the(1)
        assert (found.status.phase, found.status.step, found.tries) == (Phase.SUCCEEDED, 40, (1,))
        assert (found.name, found.place, found.cost) == (NAME, "local", None)
        assert found.status.series == curve
        assert result["report"] == found.report_url
        assert "succeeded" in text_of(found)

    def test_failure(self, fake: FakeCluster, store: str) -> None:
        fake.script(lambda: fake.fail(NAME, FailureKind.RANK_FAILED, "no such sample", 1))
        with pytest.raises(TrainingFailed):
            operator(checkpoint_uri=store).execute({"ti": (ti := trying())})
        assert the(1).status.reason == "no such sample"
        assert ti.pushed["failure"]["report"] == the(1).report_url

    def test_deferred_with_the_curves_that_an_event_lacks(self, fake: FakeCluster, store: str) -> None:
        train = operator(checkpoint_uri=store, deferrable=True)
        parting = deferred(train, ti := trying())
        fake.publish(NAME, series=noted({"loss": Series()}, {"loss": 0.5}, 40, utc_now()))
        fake.succeed(NAME)
        event = run_virtually(anext(parting.trigger.run()))
        train.execute_complete({"ti": ti}, event.payload)
        assert the(1).status.series["loss"].values == (0.5,)

    def test_deleted_at_the_end(self, fake: FakeCluster, store: str) -> None:
        fake.script(lambda: fake.succeed(NAME))
        operator(checkpoint_uri=store, on_finish="delete").execute({"ti": trying()})
        assert NAME not in fake.runs
        assert the(1).status.phase is Phase.SUCCEEDED

    def test_a_kill_in_the_worker(self, fake: FakeCluster, store: str) -> None:
        train = operator(checkpoint_uri=store)
        train._claim(train._owner(trying()), memory())
        train.on_kill()
        assert the(1).status.failure is FailureKind.CANCELLED

    def test_a_kill_in_the_triggerer(self, fake: FakeCluster, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
        parting = deferred(operator(checkpoint_uri=store, deferrable=True), trying())
        monkeypatch.setattr("elastic_training.triggers.training_run.KILL_DELAY", 0)
        run(parting.trigger.on_kill())
        assert the(1).status.failure is FailureKind.CANCELLED

    def test_a_deadline(self, fake: FakeCluster, store: str) -> None:
        train = operator(checkpoint_uri=store, deferrable=True)
        deferred(train, ti := trying())
        document = run_in(fake).document
        event = {
            "ending": "deadline",
            "status": None,
            "detail": "running",
            "name": NAME,
            "uid": document.ref.uid,
            "owner": document.owner,
        }
        with pytest.raises(AirflowTaskTimeout):
            train.execute_complete({"ti": ti}, event)
        assert the(1).status.failure is FailureKind.CANCELLED

    def test_a_trigger_that_has_failed_for_good(self, fake: FakeCluster, store: str) -> None:
        train = operator(checkpoint_uri=store, deferrable=True)
        deferred(train, trying())
        with pytest.raises(Exception, match="Trigger"):
            train.resume_execution("__fail__", {"error": "Trigger timeout"}, {"ti": trying()})
        assert the(1).status.failure is FailureKind.CANCELLED

    @pytest.mark.parametrize("kind", [CancelTrainingOperator, DeleteTrainingOperator])
    def test_a_run_that_nobody_waits_for_and_another_task_ends(
        self, fake: FakeCluster, store: str, kind: type[CancelTrainingOperator], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        FakeAirflow({"nightly": {trying().run_id: {"train": "success"}}}).install(monkeypatch)
        operator(checkpoint_uri=store, wait_for_completion=False).execute({"ti": trying()})
        assert kept() is None
        kind(task_id="end", training_task_id="train", checkpoint_uri=store).execute({"ti": FakeTaskInstance("end")})
        assert the(1).status.failure is FailureKind.CANCELLED

    def test_a_run_of_this_dag_and_another_task_ends_it(self, fake: FakeCluster, store: str) -> None:
        with DAG("d", schedule=None):
            train = operator(checkpoint_uri="{{ 'file' }}" + store.removeprefix("file"), wait_for_completion=False)
            end = CancelTrainingOperator(task_id="end", training_task_id="train")
        train.render_template_fields({})
        train.execute({"ti": trying()})
        end.execute({"ti": FakeTaskInstance("end")})
        assert the(1).status.failure is FailureKind.CANCELLED

    def test_a_document_of_a_run_does_not_choose_where_another_task_writes(
        self, fake: FakeCluster, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AIRFLOW__ELASTIC_TRAINING__LOCAL_ROOT", str(tmp_path / "runs"))
        operator(checkpoint_uri=store, wait_for_completion=False).execute({"ti": trying()})
        CancelTrainingOperator(task_id="end", training_task_id="train").execute({"ti": FakeTaskInstance("end")})
        assert {path.name for path in tmp_path.iterdir()} == {"runs"}
        assert kept() is not None


class TestTries:
    def test_a_run_that_ended_while_nobody_looked_is_kept_by_the_next_try(self, fake: FakeCluster, store: str) -> None:
        deferred(operator(checkpoint_uri=store, deferrable=True), trying(1))
        fake.fail(NAME, FailureKind.LAUNCHER_LOST, "the launcher is gone")
        fake.script(lambda: fake.succeed(NAME))
        operator(checkpoint_uri=store).execute({"ti": trying(2)})
        assert the(1).status.reason == "the launcher is gone"
        assert the(2).status.phase is Phase.SUCCEEDED
        assert the().try_number == 2
        assert the(1).tries == (1, 2)
        assert the(1).status.uid != the(2).status.uid

    def test_a_run_that_goes_on_with_the_next_try_is_kept_of_the_first_as_it_was(
        self, fake: FakeCluster, store: str
    ) -> None:
        deferred(operator(checkpoint_uri=store, deferrable=True), trying(1))
        fake.script(lambda: fake.succeed(NAME))
        operator(checkpoint_uri=store).execute({"ti": trying(2)})
        assert (the(1).status.phase, the(2).status.phase) == (Phase.RUNNING, Phase.SUCCEEDED)

    def test_what_is_final_is_not_overwritten_by_what_is_not(self, fake: FakeCluster, store: str) -> None:
        train = operator(checkpoint_uri=store, deferrable=True)
        deferred(train, trying())
        running = run_in(fake).status
        fake.succeed(NAME)
        keeper = train.keeper(fake, "local")
        run(keeper.keep(ref_in(fake)))
        run(keeper.keep_before(run_in(fake).document, running))
        assert the(1).status.phase is Phase.SUCCEEDED

    def test_of_each_task_the_newest_stay(self, fake: FakeCluster, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AIRFLOW__ELASTIC_TRAINING__ARCHIVE_KEEP", "2")
        for name in ("a", "b", "c"):
            fake.script(*[lambda: [fake.succeed(each) for each in list(fake.runs) if not over(fake, each)]])
            operator(checkpoint_uri=store).execute({"ti": trying(run_id=name)})
        assert [kept(1, trying(run_id=name)) is None for name in ("a", "b", "c")] == [True, False, False]

    def test_mapped_tasks_and_other_dag_runs_are_apart(self, fake: FakeCluster, store: str) -> None:
        fake.script(lambda: fake.succeed(NAME))
        operator(checkpoint_uri=store).execute({"ti": trying()})
        assert kept(1, trying(map_index=0)) is None
        assert kept(1, trying(run_id="another")) is None
        assert kept(2) is None

    def test_deployments_that_share_a_prefix_are_apart(
        self, fake: FakeCluster, store: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AIRFLOW__ELASTIC_TRAINING__DEPLOYMENT", "one")
        fake.script(lambda: [fake.succeed(each) for each in fake.runs])
        operator(checkpoint_uri=store).execute({"ti": trying()})
        assert kept(1) is not None
        monkeypatch.setenv("AIRFLOW__ELASTIC_TRAINING__DEPLOYMENT", "two")
        assert kept(1) is None


class TestWhere:
    def test_where_it_is_configured(
        self, fake: FakeCluster, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rendered: dict[str, Any]
    ) -> None:
        monkeypatch.setenv("AIRFLOW__ELASTIC_TRAINING__ARCHIVE", str(tmp_path / "kept here"))
        rendered.clear()
        fake.script(lambda: fake.succeed(NAME))
        operator(checkpoint_uri=store).execute({"ti": trying()})
        assert the(1).report_url.startswith(f"file://{tmp_path}/kept%20here/")

    def test_of_this_machine_without_checkpoints(
        self, fake: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rendered: dict[str, Any]
    ) -> None:
        monkeypatch.setenv("AIRFLOW__ELASTIC_TRAINING__LOCAL_ROOT", str(tmp_path / "runs"))
        rendered["checkpoint_uri"] = None
        fake.script(lambda: fake.succeed(NAME))
        result = operator().execute({"ti": trying()})
        assert result["report"].startswith(f"file://{tmp_path}/runs/archive/")
        assert data_of(the(1).report())["status"]["phase"] == "succeeded"

    def test_a_store_that_cannot_be_written_fails_no_training(
        self, fake: FakeCluster, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "file").write_text("in the way")
        monkeypatch.setenv("AIRFLOW__ELASTIC_TRAINING__ARCHIVE", str(tmp_path / "file" / "archive"))
        fake.script(lambda: fake.succeed(NAME))
        result = operator(checkpoint_uri=store).execute({"ti": trying()})
        assert (result["phase"], result["report"]) == ("succeeded", None)
        assert kept(1) is None

    def test_in_a_bucket(self, fake: FakeCluster, s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL_S3": s3_url}.items():
            monkeypatch.setenv(name, value)
        client = boto3.client("s3")
        client.create_bucket(Bucket="kept")
        client.close()
        monkeypatch.setenv("AIRFLOW__ELASTIC_TRAINING__ARCHIVE", "s3://kept/reports")
        monkeypatch.setenv("AIRFLOW__ELASTIC_TRAINING__ARCHIVE_KEEP", "2")
        for number in (1, 2, 3):
            fake.script(lambda: fake.fail(NAME, FailureKind.RANK_FAILED, "it broke"))
            with pytest.raises(TrainingFailed):
                operator().execute({"ti": trying(number)})
        assert len(the().tries) == 2
        assert the().report_url.startswith("s3://kept/reports/")
        assert the().status.reason == "it broke"

    def test_a_document_of_another_version_is_not_read_and_the_log_says_why(
        self, fake: FakeCluster, store: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        fake.script(lambda: fake.succeed(NAME))
        operator(checkpoint_uri=store).execute({"ti": trying()})
        path = Path(unquote(urlsplit(the(1).report_url).path)).with_suffix(".json")
        plain = json.loads(path.read_text())
        path.write_text(json.dumps(plain | {"version": 2, "status": "of tomorrow"}))
        assert kept(1) is None
        assert "its version is 2, and version 1 is read here: have one release" in caplog.text

    @pytest.mark.parametrize("wrong", ["nowhere://x", "s3://", "relative/folder"])
    def test_a_wrong_setting_is_a_warning(
        self, fake: FakeCluster, store: str, monkeypatch: pytest.MonkeyPatch, wrong: str
    ) -> None:
        monkeypatch.setenv("AIRFLOW__ELASTIC_TRAINING__ARCHIVE", wrong)
        fake.script(lambda: fake.succeed(NAME))
        assert operator(checkpoint_uri=store).execute({"ti": trying()})["report"] is None


def test_what_it_cost_is_kept(fake: FakeCluster, store: str) -> None:
    usage = (Usage("spot", "g4dn.xlarge", 36000.0, 3600.0),)
    fake.script(lambda: fake.publish(NAME, usage=usage), lambda: fake.succeed(NAME))
    result = operator(checkpoint_uri=store, price_book=str(SHIPPED)).execute({"ti": trying()})
    assert the(1).cost == result["cost"]
    assert f"${result['cost']['cost']}" in the(1).report()


def test_secrets_of_the_environment_are_not_kept(fake: FakeCluster, store: str) -> None:
    fake.script(lambda: fake.fail(NAME, FailureKind.RANK_FAILED, "wrong password: open-sesame-17"))
    with pytest.raises(TrainingFailed):
        operator(checkpoint_uri=store, environment={"DB_PASSWORD": "open-sesame-17"}).execute({"ti": trying()})
    assert "open-sesame" not in text_of(the(1)) + str(the(1).status)


def test_who_was_waited_for_and_how_long_is_said(
    fake: FakeCluster, store: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a task that is ended a third of the time that others have; and of a place, too."""

    async def silent(_ref: RunRef) -> str:
        await asyncio.Event().wait()
        return ""

    monkeypatch.setattr(fake, "owner", silent)
    keeper = archive.Keeper(fake, "local", logging.getLogger(), store)
    assert run(keeper.keep(RunRef(NAME, "uid"), max_wait=0.05)) is None
    assert "not kept: its place and its checkpoint store have not both answered in 0.05 s" in caplog.text


def over(fake: FakeCluster, name: str) -> bool:
    return fake.runs[name].status.phase.final


def memory() -> TaskMemory:
    return TaskMemory({}, logging.getLogger())
