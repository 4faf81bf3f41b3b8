"""Tasks and calls that pause a training and resume it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, AirflowSensorTimeout

from elastic_runtime.clock import utc_now
from elastic_runtime.errors import Conflict, FailureKind, InvalidSettings
from elastic_runtime.run.spec import CheckpointSpec, RunSpec, WorkersSpec
from elastic_runtime.run.status import Pause, Phase
from elastic_training.clusters.fake import FakeCluster
from elastic_training.clusters.registry import substituted
from elastic_training.clusters.types import RunRef
from elastic_training.concurrency.bridge import run
from elastic_training.identity.ownership import Owner
from elastic_training.operators.pause_training import PauseTrainingOperator, ResumeTrainingOperator
from tests.unit.provider.fake_airflow import FakeAirflow
from tests.unit.provider.fakes import FakeTaskInstance
from tests.unit.provider.scale_bench import NAME, TI, context, done, outcome_of, sensor, trigger_of

SPEC = RunSpec(NAME, "1", ("python",), WorkersSpec(1, 2, 4), checkpoint=CheckpointSpec("file:///store/run"))


def train(cluster: FakeCluster, spec: RunSpec = SPEC) -> RunRef:
    """A training run of 1 to 4 workers, which begins with 2."""
    return run(cluster.claim(spec, Owner.of(FakeTaskInstance("train")).text())).ref


def pause(**more: Any) -> PauseTrainingOperator:
    return PauseTrainingOperator(task_id="more", training_task_id="train", **({"deferrable": False} | more))


def resume(**more: Any) -> ResumeTrainingOperator:
    return ResumeTrainingOperator(task_id="again", training_task_id="train", **({"deferrable": False} | more))


def later() -> dict[str, Any]:
    """Context of the task that resumes."""
    return {"ti": FakeTaskInstance("again")}


@pytest.fixture(autouse=True)
def airflow(monkeypatch: pytest.MonkeyPatch) -> FakeAirflow:
    """In which the training's task runs."""
    return FakeAirflow({TI.dag_id: {TI.run_id: {"train": "running"}}}).install(monkeypatch)


@pytest.fixture
def slow() -> Iterator[FakeCluster]:
    """A cluster in which only the test makes things happen."""
    with substituted("local", cluster := FakeCluster(automatic=False)):
        yield cluster


def pause_now(cluster: FakeCluster) -> None:
    """Play launcher: as it does once the state is durable."""
    asked = cluster.named(NAME).document.pause
    assert asked is not None
    cluster.give_up_workers(NAME, asked)


class TestTasks:
    def test_pause_and_resume_with_the_size_before(self, fake: FakeCluster) -> None:
        ref = train(fake)
        run(fake.ask(ref, 3))
        result = pause().execute(context())
        assert (result["workers"], result["world_size"], result["run"]) == (0, 0, NAME)
        assert result["seconds"] >= 0
        assert (run(fake.status(ref)).phase, run(fake.size(ref))) == (Phase.PAUSED, 0)
        result = resume().execute(later())
        assert (result["workers"], result["world_size"]) == (3, 3)
        assert run(fake.paused(ref)) is None

    def test_resume_with_another_size(self, fake: FakeCluster) -> None:
        train(fake)
        pause().execute(context())
        assert resume(workers="max").execute(later())["world_size"] == 4

    def test_pause_waits_until_no_worker_is_left(self, slow: FakeCluster) -> None:
        train(slow)
        slow.train(NAME, 2)
        workers = slow.named(NAME).status.workers
        seen: list[bool] = []

        def pausing() -> None:
            pause_now(slow)
            slow.publish(NAME, workers=workers)

        def gone() -> None:
            seen.append(slow.named(NAME).status.phase is Phase.PAUSED)
            pause_now(slow)

        slow.script(pausing, gone)
        assert pause().execute(context())["workers"] == 0
        assert seen == [True]

    def test_or_only_until_it_has_asked(self, slow: FakeCluster) -> None:
        ref = train(slow)
        slow.train(NAME, 2)
        result = pause(wait=False).execute(context())
        assert (result["workers"], result["world_size"]) == (0, None)
        asked = run(slow.paused(ref))
        assert asked is not None
        assert (asked.workers, asked.by, asked.done) == (2, f"task {TI.dag_id}.more of {TI.run_id}", True)
        assert run(slow.size(ref)) == 2, "its workers go when the launcher has their state durable"

    def test_deferred(self, slow: FakeCluster) -> None:
        train(slow)
        slow.train(NAME, 2)
        task = pause(deferrable=True)
        trigger = trigger_of(task)
        slow.script(lambda: pause_now(slow))
        assert task.execute_complete(context(), outcome_of(trigger))["world_size"] == 0

    def test_a_training_that_has_not_begun_is_paused_before_it_begins(self, slow: FakeCluster) -> None:
        train(slow)
        slow.script(lambda: pause_now(slow))
        assert pause().execute(context())["workers"] == 0

    def test_pausing_twice_changes_nothing(self, fake: FakeCluster) -> None:
        ref = train(fake)
        pause().execute(context())
        pause().execute({"ti": FakeTaskInstance("other")})
        asked = run(fake.paused(ref))
        assert asked is not None
        assert asked.workers == 2
        assert resume().execute(later())["world_size"] == 2

    def test_resuming_what_is_not_paused_changes_nothing(self, fake: FakeCluster) -> None:
        ref = train(fake)
        result = resume(workers=4).execute(later())
        assert (result["workers"], result["world_size"]) == (2, None)
        assert (run(fake.size(ref)), fake.named(NAME).document.requests) == (2, ())

    def test_a_run_without_a_store_is_not_paused(self, fake: FakeCluster) -> None:
        ref = train(fake, replace(SPEC, checkpoint=None))
        with pytest.raises(AirflowFailException, match="has no checkpoint store, so a pause would lose its state"):
            pause().execute(context())
        assert run(fake.paused(ref)) is None

    def test_what_the_launcher_refuses_is_told(self, slow: FakeCluster) -> None:
        ref = train(slow)
        slow.train(NAME, 2)

        def refuse() -> None:
            asked = slow.named(NAME).document.pause
            assert asked is not None
            slow.publish(NAME, pause=Pause(asked.name, workers=2, refused="no commit has become durable"))

        slow.script(refuse)
        with pytest.raises(AirflowFailException, match="was not paused: no commit has become durable"):
            pause().execute(context())
        assert run(slow.paused(ref)) is None
        assert run(slow.ask(ref, 3)).workers == 3, "and other sizes can be asked for again"

    def test_somebody_resumes_it_meanwhile(self, slow: FakeCluster) -> None:
        ref = train(slow)
        slow.train(NAME, 2)
        slow.script(lambda: slow.resume(ref), lambda: slow.publish(NAME, reason="trains"))
        with pytest.raises(AirflowException, match="has been resumed since"):
            pause().execute(context())

    def test_the_training_ends_before(self, slow: FakeCluster, airflow: FakeAirflow) -> None:
        train(slow)
        slow.fail(NAME, FailureKind.RANK_FAILED, "no such sample")
        airflow.dags[TI.dag_id][TI.run_id]["train"] = "failed"
        with pytest.raises(AirflowException, match="before it was paused"):
            pause().execute(context())

    def test_time_is_over(self, slow: FakeCluster) -> None:
        train(slow)
        slow.train(NAME, 2)
        with pytest.raises(AirflowSensorTimeout):
            pause(timeout=0.05).execute(context())

    @pytest.mark.parametrize("workers", ["+1", 0, "soon"])
    def test_a_size_to_go_on_with_is_checked_when_the_dag_is_parsed(self, workers: Any) -> None:
        with pytest.raises(InvalidSettings, match="workers"):
            resume(workers=workers)
        resume(workers="{{ params.workers }}")


class TestDuringAPause:
    def test_another_size_is_refused(self, fake: FakeCluster) -> None:
        ref = train(fake)
        run(fake.pause(ref, by="ada"))
        with pytest.raises(Conflict, match="is paused by ada: resume it"):
            run(fake.ask(ref, 3))
        assert run(fake.size(ref)) == 0

    def test_a_sensor_waits_until_it_is_resumed(self, fake: FakeCluster) -> None:
        ref = train(fake)
        run(fake.pause(ref))
        more = sensor()
        assert not done(more)
        run(fake.resume(ref))
        assert not done(more), "now it is asked for"
        assert done(more)

    def test_one_whose_size_was_asked_for_before_waits_too(self, slow: FakeCluster) -> None:
        ref = train(slow)
        slow.train(NAME, 2)
        more = sensor()
        assert not done(more)
        run(slow.pause(ref))
        pause_now(slow)
        assert not done(more)
        run(slow.resume(ref))
        assert run(slow.size(ref)) == 3
        slow.train(NAME, 3)
        assert done(more)

    def test_the_same_request_to_resume_is_made_once(self, fake: FakeCluster) -> None:
        ref = train(fake)
        run(fake.pause(ref))
        again = resume()
        assert again.execute(later())["world_size"] == 2
        run(fake.pause(ref))
        with pytest.raises(AirflowSensorTimeout):
            resume(timeout=0.05).execute(later())
        assert run(fake.status(ref)).phase is Phase.PAUSED

    def test_a_resume_of_what_is_not_paused_is_refused(self, fake: FakeCluster) -> None:
        ref = train(fake)
        with pytest.raises(Conflict, match="is not paused"):
            run(fake.resume(ref, by="ada"))

    def test_a_size_out_of_bounds_leaves_it_paused(self, fake: FakeCluster) -> None:
        ref = train(fake)
        run(fake.pause(ref))
        with pytest.raises(InvalidSettings, match="bounds 1 to 4"):
            run(fake.resume(ref, 9))
        asked = run(fake.paused(ref))
        assert asked is not None
        assert asked.asked is not None
        assert asked.asked <= utc_now()
