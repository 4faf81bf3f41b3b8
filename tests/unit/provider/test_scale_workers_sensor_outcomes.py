"""What goes wrong around a sensor, and that its outcome is the same whichever way it waits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
)

from elastic_runtime.errors import ClusterUnavailable, MissingRight
from elastic_training.clusters.fake import FakeCluster
from tests.unit.provider.fake_airflow import FakeAirflow
from tests.unit.provider.scale_bench import TI, context, done, outcome_of, sensor, train, trigger_of


@pytest.fixture(autouse=True)
def airflow(monkeypatch: pytest.MonkeyPatch) -> FakeAirflow:
    """In which the training's task runs."""
    return FakeAirflow({TI.dag_id: {TI.run_id: {"train": "running", "more": "running"}}}).install(monkeypatch)


class TestTrouble:
    def test_a_cluster_that_does_not_answer_is_no_failure(self, fake: FakeCluster, monkeypatch: Any) -> None:
        train(fake)
        more = sensor()
        with monkeypatch.context() as patch:

            async def away(_: Any) -> Any:
                raise ClusterUnavailable("the API server does not answer")

            patch.setattr(fake, "find", away)
            for _ in range(3):
                assert not done(more)
        assert not done(more)
        assert done(more)

    def test_what_waiting_cannot_help_fails(self, fake: FakeCluster, monkeypatch: Any) -> None:
        async def refused(_: Any) -> Any:
            raise MissingRight("may not get configmaps")

        monkeypatch.setattr(fake, "find", refused)
        for deferrable in (False, True):
            with pytest.raises(AirflowFailException, match="may not get"):
                sensor(deferrable=deferrable).execute(context())


OUTCOMES: list[tuple[dict[str, Any], type[Exception] | None]] = [
    ({}, AirflowException),
    ({"if_finished": "skip"}, AirflowSkipException),
    ({"soft_fail": True}, AirflowSkipException),
    ({"never_fail": True}, AirflowSkipException),
    ({"silent_fail": True}, AirflowException),
]


class TestTheSameOutcomeEverywhere:
    """At the first look, from the trigger, and poked."""

    @pytest.mark.parametrize(("settings", "raised"), OUTCOMES)
    def test_when_the_training_has_ended(
        self, fake: FakeCluster, airflow: FakeAirflow, settings: Any, raised: type[Exception]
    ) -> None:
        later = sensor(deferrable=True, **settings)
        trigger = trigger_of(later)
        airflow.dags[TI.dag_id][TI.run_id]["train"] = "failed"
        found = []
        for look in (
            lambda: sensor(**settings).execute(context()),
            lambda: sensor(deferrable=True, **settings).execute(context()),
            lambda: later.execute_complete(context(), outcome_of(trigger)),
        ):
            with pytest.raises(AirflowException) as caught:
                look()
            found.append(type(caught.value))
        assert found == [raised] * 3

    @pytest.mark.parametrize(("settings", "raised"), OUTCOMES)
    def test_when_the_size_is_out_of_bounds(self, fake: FakeCluster, settings: Any, raised: type[Exception]) -> None:
        if raised is AirflowException or "if_finished" in settings:
            raised = AirflowFailException
        settings = settings | {"workers": 9}
        later = sensor(deferrable=True, **settings)
        trigger = trigger_of(later)
        train(fake)
        for look in (
            lambda: sensor(**settings).execute(context()),
            lambda: sensor(deferrable=True, **settings).execute(context()),
            lambda: later.execute_complete(context(), outcome_of(trigger)),
        ):
            with pytest.raises(raised) as caught:
                look()
            assert isinstance(caught.value, raised)

    @pytest.mark.parametrize(("settings", "raised"), OUTCOMES)
    def test_when_the_time_is_over(self, fake: FakeCluster, settings: Any, raised: type[Exception]) -> None:
        if raised is AirflowException or "if_finished" in settings:
            raised = AirflowSensorTimeout
        later = sensor(deferrable=True, timeout=60, **settings)
        trigger = trigger_of(later)
        trigger.deadline = datetime.now(UTC) - timedelta(seconds=1)
        with pytest.raises(raised):
            later.execute_complete(context(), outcome_of(trigger))
        with pytest.raises(raised):
            sensor(timeout=0, poke_interval=0.01, **settings).execute(context())

    @pytest.mark.parametrize(
        ("settings", "raised"),
        [({}, Exception), ({"soft_fail": True}, Exception), ({"never_fail": True}, AirflowSkipException)],
    )
    def test_when_a_look_fails_in_a_way_that_nobody_expects(
        self, fake: FakeCluster, monkeypatch: Any, settings: Any, raised: type[Exception]
    ) -> None:
        later = sensor(deferrable=True, **settings)
        trigger = trigger_of(later)

        async def broken(_: Any) -> Any:
            raise ZeroDivisionError("a bug")

        monkeypatch.setattr(fake, "find", broken)
        for look in (
            lambda: sensor(**settings).execute(context()),
            lambda: sensor(deferrable=True, **settings).execute(context()),
            lambda: later.execute_complete(context(), outcome_of(trigger)),
        ):
            with pytest.raises(raised) as caught:
                look()
            assert isinstance(caught.value, AirflowSkipException) == (raised is AirflowSkipException)

    def test_silent_fail_goes_on_after_such_a_look(self, fake: FakeCluster, monkeypatch: Any) -> None:
        train(fake)
        more = sensor(deferrable=True, silent_fail=True)
        find, broken = fake.find, [True, False, True]

        async def sometimes(name: str) -> Any:
            if broken and broken.pop():
                raise ZeroDivisionError("a bug")
            return await find(name)

        monkeypatch.setattr(fake, "find", sometimes)
        assert outcome_of(trigger_of(more))["outcome"] == "reached"
        assert not broken
