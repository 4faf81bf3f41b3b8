"""Whether another try makes sense: the decision, the policy that Airflow asks, and what failed tries carry along."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import DAG, AirflowFailException
from airflow.serialization.serialized_objects import DagSerialization
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.errors import FailureKind, InvalidSettings
from elastic_runtime.run.status import Phase, Status
from elastic_training import retry_policy
from elastic_training.airflow import versions as airflow_versions
from elastic_training.exceptions import TrainingFailed, TrainingHopeless
from elastic_training.operators.elastic_horovod import ElasticHorovodOperator
from elastic_training.outcome.retrying import HOPELESS, SOON, Failure, Outlook, decide_retry, remembered_failures
from elastic_training.retry_policy import TrainingRetryPolicy, failed_try
from elastic_training.settings import Workers

RANK = FailureKind.RANK_FAILED
ENDED = (FailureKind.CANCELLED, FailureKind.MAX_PAUSE_EXCEEDED)
"""On purpose: another try would train what was to stop."""
failures = st.lists(
    st.builds(Failure, st.sampled_from(FailureKind), st.none() | st.integers(0, 5), st.none() | st.integers(1, 9)),
    min_size=1,
    max_size=12,
)


def final_status(kind: FailureKind, step: int | None = None) -> Status:
    return Status("run", "1", Phase.FAILED, "it broke", datetime.now(UTC), failure=kind, step=step)


class TestDecision:
    @given(failures)
    def test_only_what_cannot_get_better_ends_the_tries(self, past: list[Failure]) -> None:
        advice, last = decide_retry(past), past[-1]
        same_step = last.kind is RANK and last.step is not None
        repeated = same_step and any(each.kind is RANK and each.step == last.step for each in past[:-1])
        assert (advice.outlook is Outlook.NEVER) is (repeated or last.kind in {*ENDED, *HOPELESS})

    @given(failures)
    def test_what_it_ran_on_costs_seconds_and_never_more_than_a_minute(self, past: list[Failure]) -> None:
        advice = decide_retry(past)
        assert (advice.outlook is Outlook.SOON) is (past[-1].kind in SOON)
        assert (advice.delay is not None) is (advice.outlook is Outlook.SOON)
        assert advice.delay is None or 5 <= advice.delay <= 60

    @given(failures, st.sampled_from(sorted(SOON)))
    def test_delays_grow_while_such_failures_follow_each_other(self, past: list[Failure], kind: FailureKind) -> None:
        once, twice = [*past, Failure(RANK), Failure(kind)], [*past, Failure(RANK), Failure(kind), Failure(kind)]
        assert (decide_retry(once).delay, decide_retry(twice).delay) == (5, 10)

    def test_a_lost_launcher_in_between_hides_nothing(self) -> None:
        past = [Failure(RANK, 100), Failure(FailureKind.LAUNCHER_LOST, 90), Failure(RANK, 100)]
        assert decide_retry(past).reason == "ranks have failed at step 100 2 times"
        assert decide_retry(past, same_step=False).outlook is Outlook.USUAL

    def test_a_person_who_clears_a_task_that_airflow_had_given_up_begins_anew(self) -> None:
        assert remembered_failures([Failure(RANK, 1), Failure(RANK, 1, final=True)]) == ()
        assert remembered_failures([Failure(RANK, 1, final=True), Failure(RANK, 1)]) == (
            Failure(RANK, 1, final=True),
            Failure(RANK, 1),
        )


class TestPolicy:
    def test_it_answers_airflow(self) -> None:
        policy = TrainingRetryPolicy(first=timedelta(seconds=2))
        lost = failed_try(final_status(FailureKind.LAUNCHER_LOST), (), policy, tries_left=True, hopeless=False)
        decision = policy.evaluate(lost, 1, 3)
        assert (decision.action.value, decision.retry_delay) == ("retry", timedelta(seconds=2))
        again = failed_try(final_status(RANK, 7), [Failure(RANK, 7)], policy, tries_left=True, hopeless=False)
        assert not isinstance(again, AirflowFailException), "which Airflow would not ask about"
        decision = policy.evaluate(again, 2, 3)
        assert (decision.action.value, decision.reason) == ("fail", "ranks have failed at step 7 2 times")
        other = failed_try(final_status(RANK, 8), [Failure(RANK, 7)], policy, tries_left=True, hopeless=False)
        for error in (other, ValueError("something else")):
            assert policy.evaluate(error, 2, 3).action.value == "default"

    def test_it_comes_back_from_its_serialized_form(self) -> None:
        policy = TrainingRetryPolicy(first=3, longest=30, same_step=False)
        again = TrainingRetryPolicy.deserialize(policy.serialize())
        assert again.serialize() == {"first": 3, "longest": 30, "same_step": False}

    def test_delays_that_are_none_are_refused(self) -> None:
        with pytest.raises(InvalidSettings, match="more than the longest"):
            TrainingRetryPolicy(first=10, longest=5)
        with pytest.raises(InvalidSettings, match="first"):
            TrainingRetryPolicy(first=0)


class TestFailedTry:
    @pytest.mark.parametrize(
        ("step", "tries_left", "hopeless", "final"),
        [(8, True, False, False), (7, True, False, True), (8, False, False, True), (8, True, True, True)],
    )
    def test_the_last_failure_says_whether_airflow_gives_up(
        self, step: int, tries_left: bool, hopeless: bool, final: bool
    ) -> None:
        raised = failed_try(
            final_status(RANK, step),
            [Failure(RANK, 7)],
            TrainingRetryPolicy(),
            tries_left=tries_left,
            hopeless=hopeless,
        )
        assert raised.failures == (Failure(RANK, 7), Failure(RANK, step, final=final))
        assert isinstance(raised, TrainingHopeless) is hopeless

    @pytest.mark.parametrize("policy", [None, TrainingRetryPolicy()])
    @pytest.mark.parametrize("kind", [FailureKind.LAUNCHER_ERROR, FailureKind.STANDSTILL, FailureKind.RANKS_DIFFER])
    def test_what_ends_the_same_is_not_retried(self, kind: FailureKind, policy: TrainingRetryPolicy | None) -> None:
        status = final_status(kind)
        raised = failed_try(status, (), policy, tries_left=True, hopeless=False)
        assert isinstance(raised, TrainingHopeless)
        assert raised.failures[-1].final

    def test_below_airflow_3_3_the_second_failure_at_a_step_is_not_retried_either(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(airflow_versions, "RetryDecision", None)
        assert not retry_policy.policies_are_asked()
        raised = failed_try(
            final_status(RANK, 7), [Failure(RANK, 7)], TrainingRetryPolicy(), tries_left=True, hopeless=False
        )
        assert isinstance(raised, TrainingHopeless)
        assert "it broke (not tried again: ranks have failed at step 7 2 times)" in str(raised)
        without = failed_try(final_status(RANK, 7), [Failure(RANK, 7)], None, tries_left=True, hopeless=False)
        assert type(without) is TrainingFailed


@pytest.mark.parametrize("mapped", [False, True])
def test_a_dag_with_it_is_serialised(mapped: bool) -> None:
    with DAG("nightly", schedule=None) as dag:
        settings: dict[str, Any] = {"workers": Workers(min=1), "retries": 3, "retry_policy": TrainingRetryPolicy()}
        if mapped:
            ElasticHorovodOperator.partial(task_id="train", **settings).expand(command=[["python", "train.py"]])
        else:
            ElasticHorovodOperator(task_id="train", command=["python", "train.py"], **settings)
    (found,) = DagSerialization.from_dict(DagSerialization.to_dict(dag)).tasks
    assert found.has_retry_policy
