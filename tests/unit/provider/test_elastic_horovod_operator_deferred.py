"""The operator, deferred: what it waits for, and how it resumes."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, AirflowTaskTimeout, TaskDeferred

from elastic_runtime.clock import utc_now
from elastic_runtime.documents import to_plain
from elastic_runtime.errors import ClusterUnavailable, FailureKind, RunNotFound
from elastic_runtime.run.status import Checkpoint, Phase
from elastic_training.clusters.fake import FakeCluster
from elastic_training.concurrency.bridge import run
from elastic_training.exceptions import TrainingTimedOut
from elastic_training.following.follow import Follower
from elastic_training.operators import elastic_training
from elastic_training.operators.elastic_horovod import ElasticHorovodOperator
from elastic_training.triggers.training_run import TrainingRunTrigger
from tests.unit.provider.fakes import FakeTaskInstance
from tests.unit.provider.operator_bench import NAME, deferred, operator, ref_in, run_in, told, trying
from tests.unit.provider.virtual_time import run_virtually


def resumed(operator: ElasticHorovodOperator, ti: FakeTaskInstance, parting: TaskDeferred, **event: Any) -> Any:
    trigger = parting.trigger
    assert isinstance(trigger, TrainingRunTrigger)
    about = {"name": trigger.ref.name, "uid": trigger.ref.uid, "owner": trigger.owner}
    kwargs = {"event": {"ending": "finished", "status": None, "detail": "", **about, **event}}
    return operator.resume_execution("execute_complete", kwargs, {"ti": ti})


async def _raised(error: BaseException) -> Any:
    raise error


class TestDeferred:
    def test_it_waits_in_a_trigger_with_an_absolute_deadline(self, fake: FakeCluster) -> None:
        before = datetime.now(UTC)
        parting = deferred(operator(deferrable=True, execution_timeout=timedelta(hours=1)), ti := trying())
        assert told(ti) == {"run_name": NAME, "cluster": "local"}
        assert isinstance(parting.trigger, TrainingRunTrigger)
        assert parting.trigger.ref == ref_in(fake)
        assert parting.trigger.deadline is not None
        deadline = datetime.fromisoformat(parting.trigger.deadline)
        assert timedelta(minutes=59) < deadline - before < timedelta(minutes=61)
        assert parting.timeout is None

    @pytest.mark.parametrize(("minutes", "earlier"), [(60, 120), (8, 120), (1, 30)])
    def test_airflow_2_counts_from_the_begin_and_leaves_no_time_behind_it(
        self, fake: FakeCluster, monkeypatch: pytest.MonkeyPatch, minutes: int, earlier: int
    ) -> None:
        monkeypatch.setattr(elastic_training, "times_out_deferred_tasks", lambda: True)
        ti = trying(start_date=datetime(2026, 11, 21, tzinfo=UTC))
        parting = deferred(operator(deferrable=True, execution_timeout=timedelta(minutes=minutes)), ti)
        assert isinstance(parting.trigger, TrainingRunTrigger)
        wanted = ti.start_date + timedelta(minutes=minutes, seconds=-earlier)
        assert parting.trigger.deadline == wanted.isoformat()

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

    def test_past_the_deadline_the_run_is_cancelled_and_its_failure_is_told(
        self, fake: FakeCluster, store: str
    ) -> None:
        train = operator(
            deferrable=True, execution_timeout=timedelta(hours=1), checkpoint_uri=store, on_finish="delete"
        )
        parting = deferred(train, ti := trying())
        fake.publish(NAME, step=9, checkpoint=Checkpoint(f"{store}/{NAME}/step-8", 8, utc_now()))
        seen = to_plain(run_in(fake).status)
        with pytest.raises(AirflowTaskTimeout, match="execution_timeout of 1:00:00 has passed") as caught:
            resumed(train, ti, parting, ending="deadline", status=seen)
        assert isinstance(caught.value, TrainingTimedOut)
        assert caught.value.kind is FailureKind.EXECUTION_TIMEOUT
        told_failure = ti.pushed["failure"]
        assert (told_failure["failure"], told_failure["steps"]) == ("execution_timeout", 9)
        for words in ("1:00:00", "it was running: all is well", "Another try goes on from step 8"):
            assert words in told_failure["reason"]
        assert told_failure["report"].startswith(store)
        assert NAME not in fake.runs, "on_finish"

    def test_past_the_deadline_a_run_that_does_not_end_stays_to_be_looked_at(
        self, fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        train = operator(deferrable=True, execution_timeout=timedelta(hours=1), on_finish="delete")
        parting = deferred(train, ti := trying())

        async def silent(*_: Any) -> None:
            raise ClusterUnavailable("connection refused")

        monkeypatch.setattr(fake, "cancel", silent)
        with pytest.raises(TrainingTimedOut):
            resumed(train, ti, parting, ending="deadline")
        assert ti.pushed["failure"]["failure"] == "execution_timeout"
        assert NAME in fake.runs

    def test_airflows_own_timeout_in_the_worker_is_told_alike(self, fake: FakeCluster) -> None:
        train = operator(execution_timeout=timedelta(hours=1))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Follower, "follow", lambda _: _raised(AirflowTaskTimeout("Airflow's alarm")))
            with pytest.raises(TrainingTimedOut, match="1:00:00"):
                train.execute({"ti": (ti := trying())})
        assert ti.pushed["failure"]["failure"] == "execution_timeout"
        assert run_in(fake).status.failure is FailureKind.CANCELLED
        before = len(run_in(fake).status.events)
        train.on_kill()  # As Airflow does next.
        assert len(run_in(fake).status.events) == before

    def test_a_pool_that_may_not_bound_it_is_named(self, fake: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
        deferred(operator(deferrable=True, pool="gpus"), trying())
        assert "airflow pools set gpus SLOTS DESCRIPTION --include-deferred" in capsys.readouterr().out
        deferred(operator(deferrable=True), trying(map_index=1))
        assert "Include deferred" not in capsys.readouterr().out

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
            run(fake.find(NAME))
