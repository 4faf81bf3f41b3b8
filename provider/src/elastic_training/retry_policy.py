"""When a training is tried again, by how its run failed: for the ``retry_policy`` of an ElasticHorovodOperator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.retry import RetryPolicy as Delays
from elastic_runtime.run.status import Status
from elastic_training.airflow.versions import RetryDecision, RetryPolicy, policies_are_asked
from elastic_training.exceptions import TrainingFailed, failure_of
from elastic_training.outcome.retrying import HOPELESS, Failure, Outlook, RetryAdvice, decide_retry
from elastic_training.settings.values import parse_bool, seconds_of


class TrainingRetryPolicy(RetryPolicy):
    """Retry in seconds if the training itself was well, and not at all if it would fail the same way.

    ``launcher_lost`` and ``max_wait_exceeded`` are retried after seconds, whatever the task's ``retry_delay`` is. A
    rank that failed at one step twice is not retried. ``launcher_error`` and ``budget`` are never retried, with or
    without a policy. Other failures follow the task's settings. ``retries`` limits all tries.

    Airflow uses policies since 3.3. In older versions, an ElasticHorovodOperator with this policy does not retry the
    second failure at a step either, but waits for ``retry_delay`` before every other try, because Airflow has no other
    delay.

    Args:
        first: Delay before the first of these retries. Bare numbers are seconds. It doubles while they follow each
        other. longest: Longest delay.
        same_step: Whether the second failure at a step ends the tries.

    Raises:
        InvalidSettings: a delay is invalid, or longer than the longest.
    """

    def __init__(
        self, *, first: timedelta | float = 5.0, longest: timedelta | float = 60.0, same_step: bool = True
    ) -> None:
        self.first = seconds_of("first", first)
        self.longest = seconds_of("longest", longest)
        self.same_step = parse_bool("same_step", same_step)
        if self.first > self.longest:
            problem = f"{self.first:g} s is more than the longest, {self.longest:g} s"
            raise InvalidSettings("first", problem, "Write TrainingRetryPolicy(first=5, longest=60)")

    def advise(self, failures: Sequence[Failure]) -> RetryAdvice:
        """Advise what to do after the last of a task's failures."""
        return decide_retry(failures, soon=Delays(self.first, self.longest), same_step=self.same_step)

    def evaluate(
        self,
        exception: BaseException,
        try_number: int,  # noqa: ARG002  # Airflow itself keeps to the number of tries
        max_tries: int,  # noqa: ARG002
        context: Any = None,  # noqa: ARG002
    ) -> RetryDecision:
        """Answer Airflow's request, in the task's process."""
        if not isinstance(exception, TrainingFailed) or not exception.failures:
            return RetryDecision.default()
        advice = self.advise(exception.failures)
        match advice.outlook:
            case Outlook.NEVER:
                return RetryDecision.fail(advice.reason)
            case Outlook.SOON:
                assert advice.delay is not None
                return RetryDecision.retry(timedelta(seconds=advice.delay), advice.reason)
        return RetryDecision.default()

    def serialize(self) -> dict[str, Any]:
        """Return the constructor's arguments, which Airflow stores with the DAG."""
        return {"first": self.first, "longest": self.longest, "same_step": self.same_step}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> TrainingRetryPolicy:
        """Create a policy from the arguments that :meth:`serialize` returned."""
        return cls(**data)


def failed_try(
    status: Status, earlier: Sequence[Failure], policy: object, *, tries_left: bool, hopeless: bool
) -> TrainingFailed:
    """The exception that ends a try whose run has failed.

    Args:
        status: of the run, final.
        earlier: failures of the tries before, the oldest first.
        policy: the task's ``retry_policy``.
        tries_left: whether Airflow would try again.
        hopeless: whether the task is not to be retried, whatever the policy says.
    """
    failures = (*earlier, Failure.of(status))
    hopeless = hopeless or failures[-1].kind in HOPELESS
    if isinstance(policy, TrainingRetryPolicy):
        advice = policy.advise(failures)
        useless = advice.outlook is Outlook.NEVER
        tries_left = tries_left and not useless
        if useless and not policies_are_asked():
            status = replace(status, reason=f"{status.reason} (not tried again: {advice.reason})")
            hopeless = True
    last = replace(failures[-1], final=hopeless or not tries_left)
    return failure_of(status, (*earlier, last), hopeless=hopeless)
