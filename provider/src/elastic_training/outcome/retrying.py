"""Whether another try of a training makes sense, and when. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from elastic_runtime.errors import FailureKind
from elastic_runtime.retry import RetryPolicy
from elastic_runtime.run.status import Status

MAX_FAILURES = 20
"""Failures of one task that are remembered: the newest."""
SOON = frozenset({FailureKind.LAUNCHER_LOST, FailureKind.MAX_WAIT_EXCEEDED})
"""The training was well: what it ran on was not. Its next try waits for workers by itself, so there is no use in
waiting before it."""
_REFUSED = frozenset({FailureKind.LAUNCHER_ERROR, FailureKind.BUDGET, FailureKind.OUT_OF_MEMORY})
HOPELESS = _REFUSED | {FailureKind.STANDSTILL, FailureKind.RANKS_DIFFER}
"""Somebody has to change something first: the same image or interpreter will refuse the same run again, the same script
stand still at the same step, let ranks differ or need more memory than it may have, or a budget is spent."""
DELAYS = RetryPolicy(first=5, longest=60)
"""Before such a try."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Failure of one try's run, as far as the decision about the next try needs it."""

    kind: FailureKind
    step: int | None = None
    """The newest that its ranks had committed; None: none was told."""
    exit_code: int | None = None
    final: bool = False
    """Whether Airflow had no try left then: what comes after was begun by a person, and begins anew."""

    @classmethod
    def of(cls, status: Status, *, final: bool = False) -> Self:
        """From the final status of a run that has failed."""
        return cls(status.failure or FailureKind.UNKNOWN, status.step, status.exit_code, final)


class Outlook(StrEnum):
    """Outcome of a decision about retries."""

    SOON = "soon"
    """Try again after the decision's own delay."""
    USUAL = "usual"
    """Follow the task's ``retries`` and ``retry_delay``."""
    NEVER = "never"
    """Another try would end the same way."""


@dataclass(frozen=True, slots=True)
class RetryAdvice:
    """Whether and when to try a failed task again."""

    outlook: Outlook
    reason: str
    """For people."""
    delay: float | None = None
    """Seconds; with ``soon`` only."""


def decide_retry(failures: Sequence[Failure], *, soon: RetryPolicy = DELAYS, same_step: bool = True) -> RetryAdvice:
    """Decide about the next try from the failures of a task's tries.

    Args:
        failures: the oldest first; the last is the one that is to be decided about.
        soon: delays before the next try after a failure of :data:`SOON`, growing while these follow each other.
        same_step: whether a rank that fails at one step twice ends the tries. Ranks tell the step of their last commit
            when they end, unless they are killed; where no step is known, none is the same.
    """
    last = failures[-1]
    if last.kind is FailureKind.CANCELLED:
        return RetryAdvice(Outlook.NEVER, "somebody has ended the run")
    if last.kind is FailureKind.MAX_PAUSE_EXCEEDED:
        return RetryAdvice(Outlook.NEVER, "nobody has resumed the run: clear the task to go on from its checkpoint")
    if last.kind in HOPELESS:
        return RetryAdvice(Outlook.NEVER, f"{last.kind}: another try would end the same way")
    if last.kind in SOON:
        count = next((index for index, each in enumerate(reversed(failures)) if each.kind not in SOON), len(failures))
        return RetryAdvice(Outlook.SOON, f"{last.kind}: the training itself is well", soon.delay(count))
    if same_step and last.kind is FailureKind.RANK_FAILED and last.step is not None:
        times = sum(each.kind is FailureKind.RANK_FAILED and each.step == last.step for each in failures)
        if times > 1:
            return RetryAdvice(Outlook.NEVER, f"ranks have failed at step {last.step} {times} times")
    return RetryAdvice(Outlook.USUAL, f"{last.kind} may pass")


def remembered_failures(failures: Sequence[Failure]) -> tuple[Failure, ...]:
    """Return the noted failures that count for a new try: none, once Airflow had given up before it."""
    return () if failures and failures[-1].final else tuple(failures[-MAX_FAILURES:])
