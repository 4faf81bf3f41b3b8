"""The operator in a worker, and one try after another.

Its settings: test_elastic_horovod_operator_settings. Deferred: test_elastic_horovod_operator_deferred.
"""

from __future__ import annotations

from typing import Any

import pytest
from airflow.providers.common.compat.sdk import DAG, AirflowException, AirflowFailException, AirflowSkipException

from elastic_runtime.errors import FailureKind, InvalidSettings
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import Phase
from elastic_training.clusters.fake import FakeCluster
from elastic_training.clusters.types import differing
from elastic_training.concurrency.bridge import run
from elastic_training.exceptions import TrainingCancelled, TrainingFailed, TrainingHopeless
from elastic_training.operators.elastic_horovod import ElasticHorovodOperator
from elastic_training.operators.end_training import CancelTrainingOperator
from elastic_training.settings import Workers
from elastic_training.triggers.training_run import TrainingRunTrigger
from tests.unit.provider.fakes import FakeTaskInstance
from tests.unit.provider.operator_bench import NAME, deferred, operator, ref_in, run_in, told, trying


class TestInTheWorker:
    def test_success_returns_the_result_document(self, fake: FakeCluster) -> None:
        def train_on() -> None:
            run(fake.ask(ref_in(fake), 3, "wish"))
            fake.publish(NAME, step=40, metrics={"loss": 0.1})

        fake.script(train_on, lambda: fake.succeed(NAME))
        result = operator().execute({"ti": trying()})
        assert result["run"] == NAME
        assert result["phase"] == "succeeded"
        assert result["world_sizes"] == [2, 3]
        assert (result["steps"], result["metrics"]) == (40, {"loss": 0.1})
        assert run_in(fake).document.collected

    def test_name_and_cluster_are_there_while_it_trains(self, fake: FakeCluster) -> None:
        ti, seen = trying(), []
        fake.script(lambda: seen.append(told(ti)), lambda: fake.succeed(NAME))
        operator().execute({"ti": ti})
        assert seen == [{"run_name": NAME, "cluster": "local"}]

    def test_nothing_is_pushed_where_that_is_not_wanted(self, fake: FakeCluster) -> None:
        fake.script(lambda: fake.succeed(NAME))
        operator(do_xcom_push=False).execute({"ti": (ti := trying())})
        assert ti.pushed == {}

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

    @pytest.mark.parametrize(
        ("code", "raised"),
        [(99, AirflowSkipException), (98, AirflowSkipException), (2, TrainingHopeless), (1, TrainingFailed)],
    )
    def test_the_scripts_exit_code_skips_the_task_or_ends_its_tries(
        self, fake: FakeCluster, code: int, raised: type[Exception]
    ) -> None:
        ti = trying()
        fake.script(lambda: fake.fail(NAME, FailureKind.RANK_FAILED, "it broke", code))
        with pytest.raises(raised) as caught:
            operator(skip_on_exit_code={98, 99}, fail_on_exit_code=2).execute({"ti": ti})
        assert isinstance(caught.value, AirflowFailException) is (code == 2)
        assert ti.pushed["failure"]["exit_code"] == code

    def test_who_does_not_wait_is_done_and_the_run_goes_on_without_a_lease(self, fake: FakeCluster) -> None:
        train = operator(wait_for_completion=False, deferrable=True)
        for number in (1, 2):
            assert train.execute({"ti": (ti := trying(number))}) is None
            assert told(ti) == {"run_name": NAME, "cluster": "local"}
        assert run_in(fake).status.phase is Phase.RUNNING
        assert run_in(fake).spec.timing.lease == 0
        assert differing(run_in(fake).spec, operator().spec(NAME)) == ("lease",)

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
            run(fake.claim(RunSpec(name=NAME, uid="other", command=("python",)), "try 2"))
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
        assert '"try_number":2' in run_in(fake).document.owner
        assert isinstance(parting.trigger, TrainingRunTrigger)
        assert parting.trigger.owner == run_in(fake).document.owner

    def test_a_retry_takes_the_result_that_nobody_has_collected(self, fake: FakeCluster) -> None:
        deferred(operator(deferrable=True), trying(1))
        fake.succeed(NAME)
        assert operator().execute({"ti": trying(2)})["uid"] == run_in(fake).spec.uid

    def test_a_retry_after_a_failure_resumes_under_the_same_checkpoints(self, fake: FakeCluster, store: str) -> None:
        deferred(operator(deferrable=True, checkpoint_uri=store), trying(1))
        first = run_in(fake).spec
        fake.fail(NAME, FailureKind.LAUNCHER_LOST, "the launcher is gone")
        deferred(operator(deferrable=True, checkpoint_uri=store), trying(2))
        second = run_in(fake).spec
        assert first.checkpoint is not None
        assert second.checkpoint is not None
        assert second.uid != first.uid
        assert second.checkpoint.uri == first.checkpoint.uri == f"{store}/{NAME}"
        assert second.checkpoint.fence >= first.checkpoint.fence
        assert second.checkpoint.owner != first.checkpoint.owner
        assert second.checkpoint.resume

    def test_fresh_ends_the_living_run_and_sees_no_checkpoint(self, fake: FakeCluster, store: str) -> None:
        deferred(operator(deferrable=True, checkpoint_uri=store), trying(1))
        first = run_in(fake).spec
        deferred(operator(deferrable=True, checkpoint_uri=store, fresh=True), trying(2))
        second = run_in(fake).spec
        assert second.uid != first.uid
        assert second.checkpoint is not None
        assert second.checkpoint.uri == f"{store}/{NAME}-{second.uid[:8]}"

    def test_other_dag_runs_have_other_runs(self, fake: FakeCluster) -> None:
        deferred(operator(deferrable=True), trying())
        deferred(operator(deferrable=True), trying(run_id="another"))
        assert len(fake.runs) == 2


class TestContinuing:
    def test_another_trainings_checkpoints_are_gone_on_from(self, fake: FakeCluster, store: str) -> None:
        first = operator(checkpoint_uri=store, deferrable=True)
        deferred(first, trying())
        second = operator(checkpoint_uri=store, deferrable=True, continues="train", task_id="go_on")
        deferred(second, FakeTaskInstance("go_on", try_number=2))
        (one, two) = fake.runs.values()
        assert one.spec.name != two.spec.name
        assert one.spec.checkpoint is not None
        assert two.spec.checkpoint is not None
        assert one.spec.checkpoint.uri == two.spec.checkpoint.uri == f"{store}/{NAME}"
        assert two.spec.checkpoint.resume

    @pytest.mark.parametrize(
        ("continued", "words"),
        [
            ("tran", "no training task 'tran' that is not mapped.*Do you mean 'train'"),
            ("mapped", "no training task 'mapped' that is not mapped"),
            ("end", "no training task 'end'"),
            ("tune", "'tune' adds to the checkpoints of 'train' itself.*Write 'train'"),
        ],
    )
    def test_what_has_no_folder_of_its_own_is_refused(
        self, fake: FakeCluster, store: str, continued: str, words: str
    ) -> None:
        """Its checkpoints would be looked for in a folder that nobody writes to."""
        with DAG("nightly", schedule=None):
            operator(checkpoint_uri=store)
            operator(checkpoint_uri=store, continues="train", task_id="tune")
            CancelTrainingOperator(task_id="end", training_task_id="train")
            settings: dict[str, Any] = {"workers": Workers(min=1, start=2, max=4), "checkpoint_uri": store}
            ElasticHorovodOperator.partial(task_id="mapped", **settings).expand(command=[["a"], ["b"]])
            last = operator(checkpoint_uri=store, continues=continued, task_id="go_on")
        with pytest.raises(AirflowFailException, match=words):
            last.execute({"ti": FakeTaskInstance("go_on", try_number=1)})
        assert not fake.runs

    def test_a_connection_may_name_the_checkpoints(self) -> None:
        with pytest.raises(InvalidSettings, match="it resumes from checkpoints, and checkpoint_uri is not set"):
            operator(continues="train", task_id="go_on")
        task = operator(continues="train", task_id="go_on", cluster="site")
        with pytest.raises(InvalidSettings, match="it resumes from checkpoints, and checkpoint_uri is not set"):
            task.spec("run")
