"""What a training task remembers between its tries, and which run follows when that is not the run of its name."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import TaskDeferred
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.documents import to_plain
from elastic_runtime.errors import FailureKind
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import Checkpoint, Phase
from elastic_training.airflow import versions as airflow_versions
from elastic_training.clusters.fake import FakeCluster
from elastic_training.clusters.registry import substituted
from elastic_training.concurrency.bridge import run
from elastic_training.exceptions import TrainingCancelled, TrainingFailed, TrainingHopeless
from elastic_training.identity.naming import TaskIdentity
from elastic_training.identity.ownership import Owner
from elastic_training.lifecycle.remembered import Choice, Found, RememberedRun
from elastic_training.operators.elastic_horovod import ElasticHorovodOperator
from elastic_training.retry_policy import TrainingRetryPolicy
from tests.unit.provider.fake_states import FakeStateStore
from tests.unit.provider.operator_bench import NAME, operator, run_in, trying

TASK = TaskIdentity("nightly", trying().run_id, "train")
FORMER = replace(TASK, deployment="research").name
"""What the run was called while the deployment had that name."""
OLD = RememberedRun(FORMER, "uid", "local", "research")


def owner_of(task: TaskIdentity = TASK) -> Owner:
    return Owner(task.dag_id, task.run_id, task.task_id, task.map_index, 1, "nonce", task.deployment)


def tried(train: ElasticHorovodOperator, states: FakeStateStore | None, number: int = 1, **ti: Any) -> Any:
    context: dict[str, Any] = {"ti": trying(number, **ti)}
    return train.execute(context if states is None else context | {"task_state_store": states})


class TestChoice:
    MINE, OVER = Found(owner_of(), True), Found(owner_of(), False)
    RENAMED = Found(owner_of(replace(TASK, deployment="research")), True)
    FOREIGN = Found(owner_of(replace(TASK, task_id="other")), True)
    UNKNOWN = Found(None, True)

    @pytest.mark.parametrize(
        ("old", "new", "kept"),
        [
            (MINE, None, True),
            (RENAMED, None, True),
            (MINE, MINE, True),
            (OVER, None, True),
            (OVER, OVER, True),
            (OVER, MINE, False),
            (None, MINE, False),
            (None, None, True),
            (None, OVER, True),
            (FOREIGN, None, False),
            (UNKNOWN, None, False),
        ],
    )
    def test_what_lives_goes_on_and_checkpoints_are_kept(self, old: Any, new: Any, kept: bool) -> None:
        choice = Choice.of(TASK, TASK.name, OLD, old, new)
        assert choice.name == (OLD.name if kept else TASK.name)
        assert OLD.name in choice.warning

    @given(st.sampled_from([None, MINE, RENAMED, OVER, FOREIGN, UNKNOWN]), st.sampled_from([None, MINE, OVER]))
    def test_a_name_that_nothing_confirms_is_never_taken(self, old: Found | None, new: Found | None) -> None:
        stolen = replace(OLD, name="another-tasks-run-0123456789")
        choice = Choice.of(TASK, TASK.name, stolen, old, new)
        assert choice.name == TASK.name or (old is not None and old.belongs_to(TASK))


class TestTheOperator:
    @pytest.fixture
    def states(self) -> FakeStateStore:
        return FakeStateStore()

    def test_people_see_run_cluster_and_checkpoint(self, fake: FakeCluster, states: FakeStateStore, store: str) -> None:
        seen: list[Any] = []
        written = Checkpoint(f"{store}/{NAME}/00000040", 40, datetime(2026, 11, 22, 8, tzinfo=UTC))
        fake.script(
            lambda: seen.append(dict(states.values)),
            lambda: fake.publish(NAME, checkpoint=written),
            lambda: fake.succeed(NAME),
        )
        tried(operator(checkpoint_uri=store), states)
        (before,) = seen
        assert (before["training_run"]["name"], before["training_run"]["cluster"]) == (NAME, "local")
        assert before["training_checkpoint"] == {"folder": f"{store}/{NAME}"}
        assert states.values["training_checkpoint"] == {"folder": f"{store}/{NAME}", **to_plain(written)}

    def test_a_retry_finds_its_run_after_the_deployment_was_renamed(
        self, fake: FakeCluster, states: FakeStateStore
    ) -> None:
        states.set("training_run", to_plain(OLD))
        spec = RunSpec(name=FORMER, uid="uid", command=("python", "train.py"))
        run(fake.claim(spec, owner_of(replace(TASK, deployment="research")).text()))
        fake.script(lambda: fake.succeed(FORMER))
        assert tried(operator(), states, 2)["uid"] == "uid"

    def test_a_new_run_goes_on_from_the_checkpoints_of_the_old_name(
        self, fake: FakeCluster, states: FakeStateStore, store: str
    ) -> None:
        states.set("training_run", to_plain(OLD))
        with pytest.raises(TaskDeferred):
            tried(operator(checkpoint_uri=store, deferrable=True), states, 2)
        (made,) = fake.runs.values()
        assert made.spec.checkpoint is not None
        assert made.spec.checkpoint.uri == f"{store}/{FORMER}"

    def test_a_run_that_was_left_in_another_place_is_asked_to_end(
        self, fake: FakeCluster, states: FakeStateStore
    ) -> None:
        with substituted("spot", elsewhere := FakeCluster()):
            spec = RunSpec(name=NAME, uid="uid", command=("python", "train.py"))
            run(elsewhere.claim(spec, owner_of().text()))
            states.set("training_run", to_plain(RememberedRun(NAME, "uid", "spot")))
            fake.script(lambda: fake.succeed(NAME))
            tried(operator(), states, 2)
            assert elsewhere.runs[NAME].status.failure is FailureKind.CANCELLED

    def test_a_place_that_is_only_written_in_another_way_is_the_same(
        self, fake: FakeCluster, states: FakeStateStore
    ) -> None:
        with pytest.raises(TaskDeferred):
            tried(operator(deferrable=True), states)
        states.values["training_run"]["cluster"] = "local/default"
        with substituted("local/default", fake), pytest.raises(TaskDeferred):
            tried(operator(deferrable=True), states, 2)
        assert run_in(fake).status.phase is Phase.RUNNING

    def test_a_store_that_does_not_answer_costs_nothing_but_warnings(
        self, fake: FakeCluster, states: FakeStateStore
    ) -> None:
        states.trouble = RuntimeError("the API server does not answer")
        fake.script(lambda: fake.succeed(NAME))
        assert tried(operator(), states)["phase"] == "succeeded"


class TestTries:
    @pytest.fixture
    def train(self) -> ElasticHorovodOperator:
        return operator(retry_policy=TrainingRetryPolicy(), retries=9)

    def fail(self, fake: FakeCluster, kind: FailureKind, step: int) -> None:
        fake.script(lambda: fake.publish(NAME, step=step), lambda: fake.fail(NAME, kind, "it broke", 1))

    def test_the_policy_hears_of_all_tries(self, fake: FakeCluster, train: ElasticHorovodOperator) -> None:
        states = FakeStateStore()
        told = [(FailureKind.RANK_FAILED, 100), (FailureKind.LAUNCHER_LOST, 90), (FailureKind.RANK_FAILED, 100)]
        actions = []
        for number, (kind, step) in enumerate(told, start=1):
            self.fail(fake, kind, step)
            with pytest.raises(TrainingFailed) as caught:
                tried(train, states, number, max_tries=9)
            actions.append(train.retry_policy.evaluate(caught.value, number, 9).action.value)
        assert actions == ["default", "retry", "fail"]
        assert [each["final"] for each in states.values["training_failures"]] == [False, False, True]

    def test_after_a_success_nothing_is_held_against_it(self, fake: FakeCluster, train: ElasticHorovodOperator) -> None:
        states = FakeStateStore()
        self.fail(fake, FailureKind.RANK_FAILED, 100)
        with pytest.raises(TrainingFailed):
            tried(train, states, max_tries=9)
        fake.script(lambda: fake.succeed(NAME))
        tried(train, states, 2, max_tries=9)
        assert states.values["training_failures"] == []

    @pytest.mark.parametrize("deferrable", [False, True])
    def test_below_airflow_3_3_the_run_before_is_remembered(
        self, fake: FakeCluster, monkeypatch: pytest.MonkeyPatch, deferrable: bool
    ) -> None:
        monkeypatch.setattr(airflow_versions, "RetryDecision", None)
        train = operator(retry_policy=TrainingRetryPolicy(), deferrable=deferrable)
        for number, raised in ((1, TrainingFailed), (2, TrainingHopeless)):
            if not deferrable:
                self.fail(fake, FailureKind.RANK_FAILED, 100)
            with pytest.raises(raised) as caught:
                tried_to_the_end(train, fake, number)
            assert type(caught.value) is raised

    def test_a_cancel_is_never_retried(self, fake: FakeCluster, train: ElasticHorovodOperator) -> None:
        self.fail(fake, FailureKind.CANCELLED, 1)
        with pytest.raises(TrainingCancelled):
            tried(train, FakeStateStore(), max_tries=9)


def tried_to_the_end(train: ElasticHorovodOperator, fake: FakeCluster, number: int) -> None:
    try:
        tried(train, None, number, max_tries=9)
    except TaskDeferred as parting:
        fake.publish(NAME, step=100)
        fake.fail(NAME, FailureKind.RANK_FAILED, "it broke", 1)
        ref = run_in(fake).document.ref
        about = {"name": ref.name, "uid": ref.uid, "owner": parting.trigger.owner}
        event = {"ending": "finished", "status": to_plain(run_in(fake).status), "detail": "", **about}
        kwargs = {"event": event, **(parting.kwargs or {})}
        train.resume_execution("execute_complete", kwargs, {"ti": trying(number, max_tries=9)})
