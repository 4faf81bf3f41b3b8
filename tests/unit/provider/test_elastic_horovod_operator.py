from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import (
    DAG,
    AirflowException,
    AirflowFailException,
    AirflowTaskTimeout,
    TaskDeferred,
    task,
)

from elastic_runtime.documents import to_plain
from elastic_runtime.errors import InvalidSettings, RunNotFound
from elastic_runtime.spec import RunSpec
from elastic_runtime.status import FailureKind, Phase
from elastic_training.clusters.base import RunRef
from elastic_training.clusters.fake import FakeCluster, FakeRun
from elastic_training.exceptions import TrainingCancelled, TrainingFailed
from elastic_training.naming import run_name
from elastic_training.operators.elastic_horovod import ElasticHorovodOperator
from elastic_training.pods import Hardware, Pods, PodShape, Volume
from elastic_training.settings import Recovery, Workers
from elastic_training.triggers.training_run import TrainingRunTrigger
from tests.unit.provider.fakes import FakeTaskInstance
from tests.unit.provider.virtual_time import run_virtually


def operator(**more: Any) -> ElasticHorovodOperator:
    settings: dict[str, Any] = {"command": ["python", "train.py"], "workers": Workers(min=1, start=2, max=4)}
    return ElasticHorovodOperator(task_id="train", **(settings | {"deferrable": False} | more))


def trying(number: int = 1, **more: Any) -> FakeTaskInstance:
    return FakeTaskInstance("train", try_number=number, **more)


NAME = run_name("nightly", trying().run_id, "train")


def run_in(fake: FakeCluster) -> FakeRun:
    return fake.runs[NAME]


def ref_in(fake: FakeCluster) -> RunRef:
    return fake.find(NAME)


def deferred(operator: ElasticHorovodOperator, ti: FakeTaskInstance) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as caught:
        operator.execute({"ti": ti})
    return caught.value


def resumed(operator: ElasticHorovodOperator, ti: FakeTaskInstance, parting: TaskDeferred, **event: Any) -> Any:
    trigger = parting.trigger
    assert isinstance(trigger, TrainingRunTrigger)
    about = {"name": trigger.ref.name, "uid": trigger.ref.uid, "owner": trigger.owner}
    kwargs = {"event": {"ending": "finished", "status": None, "detail": "", **about, **event}}
    return operator.resume_execution("execute_complete", kwargs, {"ti": ti})


class TestAtParse:
    @pytest.mark.parametrize(
        ("settings", "field"),
        [
            ({"command": []}, "command"),
            ({"command": "python train.py"}, "command"),
            ({"cluster": ""}, "cluster"),
            ({"cluster": "moon/base/camp"}, "cluster"),
            ({"cluster": "moon/Base"}, "cluster"),
            ({"cluster": None}, "cluster"),
            ({"cluster": "moon"}, "image"),
            ({"cluster": "moon", "image": "no image"}, "image"),
            ({"cluster": "moon", "pods": {"image": "trainer:1"}}, "pods"),
            ({"pods": Pods(hardware=Hardware(gpus=1))}, "pods.hardware"),
            ({"workers": 3}, "workers"),
            ({"recovery": "elastic"}, "recovery"),
            ({"on_finish": "forget"}, "on_finish"),
            ({"environment": {"A=B": "1"}}, "environment"),
            ({"fresh": "maybe"}, "fresh"),
        ],
    )
    def test_what_cannot_work_is_refused(self, settings: dict[str, Any], field: str) -> None:
        with pytest.raises(InvalidSettings) as caught:
            operator(**settings)
        assert caught.value.field == field

    def test_a_checkpoint_uri_that_no_store_knows_is_refused(self) -> None:
        with pytest.raises(InvalidSettings, match="checkpoint"):
            operator(checkpoint="ftp://host/runs")

    def test_what_only_rendering_shows_is_accepted(self) -> None:
        operator(
            command=["python", "{{ params.script }}"],
            checkpoint="{{ params.store }}",
            fresh="{{ params.fresh }}",
            workers=Workers(min="{{ params.least }}", max="{{ params.most }}"),
            cluster="{{ params.cluster }}",
            image="{{ params.image }}",
        )

    def test_the_pods_of_another_cluster_need_an_image_in_one_of_two_places(self) -> None:
        operator(cluster="moon/base", image="trainer:1")
        operator(cluster="moon", pods=Pods(image="trainer:1"))


class TestRendering:
    def test_settings_are_rendered_and_the_dags_own_stay_as_they_are(self) -> None:
        with DAG("nightly", schedule=None):
            workers = Workers(min=1, start=2, max="{{ params.most }}")
            train = operator(workers=workers, recovery=Recovery(mode="{{ params.mode }}"), fresh="{{ params.fresh }}")
        train.render_template_fields({"params": {"most": 7, "mode": "fixed", "fresh": False}})
        spec = train.spec("name")
        assert (spec.workers.maximum, spec.recovery.mode) == (7, "fixed")
        assert workers.max == "{{ params.most }}"

    def test_a_mapped_task_renders_too(self) -> None:
        with DAG("nightly", schedule=None):
            mapped = ElasticHorovodOperator.partial(
                task_id="train", workers=Workers(min=1, max="{{ params.most }}")
            ).expand(command=[["python", "a.py"], ["python", "b.py"]])
        train = mapped.unmap({"command": ["python", "b.py"]})
        train.render_template_fields({"params": {"most": 3}})
        assert isinstance(train, ElasticHorovodOperator)
        assert train.spec("name").workers.maximum == 3
        assert train.spec("name").command == ("python", "b.py")

    def test_the_output_of_another_task_makes_it_upstream(self) -> None:
        @task
        def prepare() -> str:
            return "data"

        with DAG("nightly", schedule=None):
            train = operator(command=["python", "train.py", "--data", prepare()])
        assert train.upstream_task_ids == {"prepare"}

    def test_the_cluster_is_rendered_and_told_what_its_pods_shall_be(
        self, fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[tuple[str, Pods | None]] = []

        def get_cluster(name: str, pods: Pods | None = None) -> FakeCluster:
            asked.append((name, pods))
            return fake

        monkeypatch.setattr("elastic_training.operators.elastic_horovod.get_cluster", get_cluster)
        train = operator(
            deferrable=True,
            cluster="{{ params.cluster }}",
            image="trainer:{{ params.tag }}",
            workers=Workers(gpus="{{ params.gpus }}", shm="{{ params.shm }}"),
            pods=Pods(
                volumes=[Volume("{{ params.data }}", claim="data")],
                worker=PodShape(resources={"limits": {"memory": "{{ params.memory }}"}}),
            ),
        )
        params = {"cluster": "moon/base", "tag": 7, "gpus": 2, "shm": "1Gi", "data": "/data", "memory": "4Gi"}
        train.render_template_fields({"params": params})
        parting = deferred(train, trying())
        name, pods = asked[0]
        assert pods is not None
        assert (name, pods.image, pods.hardware) == ("moon/base", "trainer:7", Hardware(gpus=2, shm="1Gi"))
        assert pods.volumes[0].mount == "/data"
        assert pods.worker.resources == {"limits": {"memory": "4Gi"}}
        assert isinstance(parting.trigger, TrainingRunTrigger)
        assert parting.trigger.cluster == "moon/base"

    @pytest.mark.parametrize(
        ("cluster", "data", "field"), [("moon/Base", "/data", "cluster"), ("moon", "data", "pods.volumes[0].mount")]
    )
    def test_a_bad_rendered_pod_or_cluster_ends_the_task_without_retry(
        self, cluster: str, data: str, field: str
    ) -> None:
        train = operator(
            cluster="{{ params.cluster }}", image="t:1", pods=Pods(volumes=[Volume("{{ params.data }}", claim="data")])
        )
        train.render_template_fields({"params": {"cluster": cluster, "data": data}})
        with pytest.raises(AirflowFailException, match=re.escape(f"{field}: ")):
            train.execute({"ti": trying()})

    def test_this_machine_asks_for_no_pods_however_they_are_set(self, fake: FakeCluster) -> None:
        train = operator(deferrable=True, image="{{ params.image }}", pods=Pods(queue="{{ params.queue }}"))
        train.render_template_fields({"params": {"image": "", "queue": "No Name"}})
        deferred(train, trying())
        assert NAME in fake.runs

    def test_a_dry_run_prints_the_plan_and_creates_nothing(
        self, fake: FakeCluster, capsys: pytest.CaptureFixture[str]
    ) -> None:
        train = operator()
        train.dry_run()
        assert "python train.py" in capsys.readouterr().out
        assert not fake.runs

    def test_a_bad_rendered_value_ends_the_task_without_retry_and_creates_nothing(self, fake: FakeCluster) -> None:
        rendered = operator(workers=Workers(min=5, max="{{ params.most }}"))
        rendered.render_template_fields({"params": {"most": 2}})
        with pytest.raises(AirflowFailException, match=r"workers\.min: 5 is more than workers\.max"):
            rendered.execute({"ti": trying()})
        assert not fake.runs


class TestInTheWorker:
    def test_success_returns_the_result_document(self, fake: FakeCluster) -> None:
        def train_on() -> None:
            fake.set_size(ref_in(fake), 3, "wish")
            fake.publish(NAME, step=40, metrics={"loss": 0.1})

        fake.script(train_on, lambda: fake.succeed(NAME))
        result = operator().execute({"ti": trying()})
        assert result["run"] == NAME
        assert result["phase"] == "succeeded"
        assert result["world_sizes"] == [2, 3]
        assert (result["steps"], result["metrics"]) == (40, {"loss": 0.1})
        assert run_in(fake).collected

    @pytest.mark.parametrize(
        ("kind", "raised"),
        [
            (FailureKind.RANK_FAILED, TrainingFailed),
            (FailureKind.LAUNCHER_LOST, TrainingFailed),
            (FailureKind.CANCELLED, TrainingCancelled),
        ],
    )
    def test_failure_says_why_and_leaves_the_document(
        self, fake: FakeCluster, kind: FailureKind, raised: type[TrainingFailed]
    ) -> None:
        ti = trying()
        fake.script(lambda: fake.fail(NAME, kind, "it broke"))
        with pytest.raises(raised, match="it broke") as caught:
            operator().execute({"ti": ti})
        assert caught.value.kind is kind
        assert isinstance(caught.value, AirflowFailException) is (kind is FailureKind.CANCELLED)
        assert ti.pushed["failure"]["failure"] == kind.value

    def test_a_kill_cancels_and_the_task_fails(self, fake: FakeCluster) -> None:
        train = operator()
        fake.script(train.on_kill)
        with pytest.raises(TrainingCancelled):
            train.execute({"ti": trying()})

    def test_a_kill_before_the_run_exists_creates_nothing_that_goes_on(self, fake: FakeCluster) -> None:
        train = operator()
        train.on_kill()
        with pytest.raises(TrainingCancelled):
            train.execute({"ti": trying()})

    def test_a_kill_after_the_next_try_took_over_is_harmless(self, fake: FakeCluster) -> None:
        first = operator()

        def take_over() -> None:
            fake.claim(RunSpec(name=NAME, uid="other", command=("python",)), "try 2")
            first.on_kill()
            fake.write_log(NAME, "for the second try")

        fake.script(take_over)
        with pytest.raises(AirflowException, match="out of this try's hands"):
            first.execute({"ti": trying()})
        assert run_in(fake).status.phase is Phase.RUNNING

    @pytest.mark.parametrize(
        ("policy", "kind", "kept"),
        [
            ("keep", None, True),
            ("delete", None, False),
            ("delete", FailureKind.RANK_FAILED, False),
            ("delete_if_succeeded", None, False),
            ("delete_if_succeeded", FailureKind.RANK_FAILED, True),
        ],
    )
    def test_on_finish(self, fake: FakeCluster, policy: str, kind: FailureKind | None, kept: bool) -> None:
        train = operator(on_finish=policy)
        if kind is None:
            fake.script(lambda: fake.succeed(NAME))
            train.execute({"ti": trying()})
        else:
            fake.script(lambda: fake.fail(NAME, kind, "it broke"))
            with pytest.raises(TrainingFailed):
                train.execute({"ti": trying()})
        assert (NAME in fake.runs) is kept


class TestTries:
    def test_a_retry_adopts_the_living_run(self, fake: FakeCluster) -> None:
        deferred(operator(deferrable=True), trying(1))
        uid = run_in(fake).spec.uid
        parting = deferred(operator(deferrable=True), trying(2))
        assert run_in(fake).spec.uid == uid
        assert '"try_number":2' in run_in(fake).owner
        assert isinstance(parting.trigger, TrainingRunTrigger)
        assert parting.trigger.owner == run_in(fake).owner

    def test_a_retry_takes_the_result_that_nobody_has_collected(self, fake: FakeCluster) -> None:
        deferred(operator(deferrable=True), trying(1))
        fake.succeed(NAME)
        assert operator().execute({"ti": trying(2)})["uid"] == run_in(fake).spec.uid

    def test_a_retry_after_a_failure_resumes_under_the_same_checkpoints(self, fake: FakeCluster, store: str) -> None:
        deferred(operator(deferrable=True, checkpoint=store), trying(1))
        first = run_in(fake).spec
        fake.fail(NAME, FailureKind.LAUNCHER_LOST, "the launcher is gone")
        deferred(operator(deferrable=True, checkpoint=store), trying(2))
        second = run_in(fake).spec
        assert first.checkpoint is not None
        assert second.checkpoint is not None
        assert second.uid != first.uid
        assert second.checkpoint.uri == first.checkpoint.uri == f"{store}/{NAME}"
        assert second.checkpoint.fence >= first.checkpoint.fence
        assert second.checkpoint.resume

    def test_fresh_ends_the_living_run_and_sees_no_checkpoint(self, fake: FakeCluster, store: str) -> None:
        deferred(operator(deferrable=True, checkpoint=store), trying(1))
        first = run_in(fake).spec
        deferred(operator(deferrable=True, checkpoint=store, fresh=True), trying(2))
        second = run_in(fake).spec
        assert second.uid != first.uid
        assert second.checkpoint is not None
        assert second.checkpoint.uri == f"{store}/{NAME}-{second.uid[:8]}"

    def test_other_dag_runs_have_other_runs(self, fake: FakeCluster) -> None:
        deferred(operator(deferrable=True), trying())
        deferred(operator(deferrable=True), trying(run_id="another"))
        assert len(fake.runs) == 2


class TestDeferred:
    def test_it_waits_in_a_trigger_with_an_absolute_deadline(self, fake: FakeCluster) -> None:
        before = datetime.now(UTC)
        parting = deferred(operator(deferrable=True, execution_timeout=timedelta(hours=1)), trying())
        assert isinstance(parting.trigger, TrainingRunTrigger)
        assert parting.trigger.ref == ref_in(fake)
        assert parting.trigger.deadline is not None
        deadline = datetime.fromisoformat(parting.trigger.deadline)
        assert timedelta(minutes=59) < deadline - before < timedelta(minutes=61)
        assert parting.timeout is None

    def test_what_the_trigger_fires_is_what_the_task_resumes_with(self, fake: FakeCluster) -> None:
        train, ti = operator(deferrable=True), trying()
        parting = deferred(train, ti)
        path, kwargs = parting.trigger.serialize()
        assert path.endswith("TrainingRunTrigger")
        fake.script(lambda: fake.succeed(NAME))

        async def fire() -> list[Any]:
            return [event.payload async for event in TrainingRunTrigger(**kwargs).run()]

        (payload,) = run_virtually(fire())
        result = train.resume_execution("execute_complete", {"event": json.loads(json.dumps(payload))}, {"ti": ti})
        assert (result["phase"], result["uid"]) == ("succeeded", run_in(fake).spec.uid)

    def test_the_event_brings_the_result_even_when_the_run_is_gone(self, fake: FakeCluster) -> None:
        train, ti = operator(deferrable=True), trying()
        parting = deferred(train, ti)
        fake.succeed(NAME)
        event = {"status": to_plain(run_in(fake).status)}
        del fake.runs[NAME]
        assert resumed(train, ti, parting, **event)["phase"] == "succeeded"

    def test_past_the_deadline_the_run_is_cancelled(self, fake: FakeCluster) -> None:
        train, ti = operator(deferrable=True, execution_timeout=timedelta(hours=1)), trying()
        parting = deferred(train, ti)
        with pytest.raises(AirflowTaskTimeout):
            resumed(train, ti, parting, ending="deadline")
        assert run_in(fake).status.failure is FailureKind.CANCELLED

    def test_a_run_that_vanished_is_a_failure_with_retry(self, fake: FakeCluster) -> None:
        train, ti = operator(deferrable=True), trying()
        parting = deferred(train, ti)
        with pytest.raises(AirflowException) as caught:
            resumed(train, ti, parting, ending="vanished", detail="no run")
        assert not isinstance(caught.value, AirflowFailException)

    @pytest.mark.parametrize(
        ("error", "try_number", "cancelled"),
        [("Trigger timeout", 1, True), ("Trigger failure", 1, False), ("Trigger failure", 2, True)],
    )
    def test_when_the_trigger_fails_the_run_ends_unless_a_retry_adopts_it(
        self, fake: FakeCluster, error: str, try_number: int, cancelled: bool
    ) -> None:
        train, ti = operator(deferrable=True), trying(try_number)
        deferred(train, ti)
        with pytest.raises(AirflowException):
            train.resume_execution("__fail__", {"error": error}, {"ti": ti})
        assert run_in(fake).status.phase.final is cancelled

    def test_when_the_trigger_of_an_old_try_fails_the_new_tries_run_goes_on(self, fake: FakeCluster) -> None:
        train, ti = operator(deferrable=True), trying(1, max_tries=0)
        deferred(train, ti)
        deferred(operator(deferrable=True), trying(2))
        with pytest.raises(AirflowException):
            train.resume_execution("__fail__", {"error": "Trigger timeout"}, {"ti": ti})
        assert run_in(fake).status.phase is Phase.RUNNING

    def test_when_the_trigger_fails_after_the_run_is_gone_nothing_else_breaks(self, fake: FakeCluster) -> None:
        train, ti = operator(deferrable=True), trying(2)
        with pytest.raises(AirflowException, match="Trigger timeout"):
            train.resume_execution("__fail__", {"error": "Trigger timeout"}, {"ti": ti})
        with pytest.raises(RunNotFound):
            fake.find(NAME)
