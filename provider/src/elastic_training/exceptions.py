"""How a training that did not succeed ends its task.

Settings errors, missing runs and lost ownership keep their classes from :mod:`elastic_runtime.errors`; these add
only what Airflow has to know: whether another try makes sense.
"""

from __future__ import annotations

from elastic_runtime.errors import FailureKind, RunFailed
from elastic_runtime.run.status import Status
from elastic_training.airflow.sdk import AirflowException, AirflowFailException, AirflowTaskTimeout
from elastic_training.outcome.retrying import Failure


class TrainingFailed(RunFailed, AirflowException):
    """The run failed. The task is retried, if it has retries left, and resumes from the newest checkpoint.

    ``kind`` is the reason, also in an ``on_failure_callback`` as ``context["exception"].kind``. ``failures`` lists the
    known failures of all tries, the oldest first.
    """

    failures: tuple[Failure, ...] = ()


class TrainingCancelled(TrainingFailed, AirflowFailException):
    """The run was ended on purpose, or its pause was too long. The task is not retried: that would start it again."""


class TrainingHopeless(TrainingFailed, AirflowFailException):
    """Another try would end the same way, so the task is not retried.

    The script ended with a code of ``fail_on_exit_code``, no launcher can run the run (``launcher_error``), or a
    TrainingRetryPolicy decided so.
    """


class TrainingTimedOut(TrainingFailed, AirflowTaskTimeout):
    """The try took longer than ``execution_timeout``. The task is retried, and resumes from the newest checkpoint."""


_CLASSES: dict[FailureKind, type[TrainingFailed]] = {
    FailureKind.CANCELLED: TrainingCancelled,
    FailureKind.MAX_PAUSE_EXCEEDED: TrainingCancelled,
    FailureKind.EXECUTION_TIMEOUT: TrainingTimedOut,
}


def failure_of(status: Status, failures: tuple[Failure, ...] = (), *, hopeless: bool = False) -> TrainingFailed:
    """The exception for a run that has failed.

    Args:
        status: its final one.
        failures: of the task's tries, this one's the last.
        hopeless: the task is not to be retried.
    """
    kind = status.failure or FailureKind.UNKNOWN
    usual = TrainingHopeless if hopeless else TrainingFailed
    raised = _CLASSES.get(kind, usual)(kind, f"training run {status.run} failed: {status.reason}")
    raised.failures = failures
    return raised
