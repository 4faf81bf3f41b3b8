"""Why a run's launcher does not run, and whether waiting helps. Pure.

What Kubernetes says of pods in general is in :mod:`elastic_runtime.kubernetes.diagnosis`; here is what the launcher's
Job and its exit codes add. What may be a slip counts as fatal only after a while.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from elastic_runtime.kubernetes.diagnosis import GRACE, MAX_WORDS, NOT_STARTED, Cause, cause, of_pod, said, warning_of
from elastic_runtime.kubernetes.objects import Container, Ended, Event, Object, Pod
from elastic_runtime.run.runobjects import COULD_NOT_RUN, LAUNCHER_CONTAINER, REPLACED
from elastic_runtime.run.status_failure import CANNOT_RUN, END_OF_LOG

CRASHES = 3
"""Launchers that have ended badly, one after the other, before any has spoken."""
_NO_PROGRAM = (126, 127, 128)
"""Exit codes of a container whose command is not in its image."""


@dataclass(frozen=True, slots=True)
class Why:
    """Why a launcher does not run."""

    text: str
    """For people, with the remedy."""
    fatal: bool = False
    """Waiting would not help."""
    refused: bool = False
    """The launcher itself has said so: it ran, and no launcher can run this run."""

    def __str__(self) -> str:
        return self.text


def about(pods: Sequence[Pod], events: Iterable[Event], job: Object | None, now: datetime) -> Why | None:
    """Why there is no launcher at work.

    Args:
        pods: the run's launchers, past and present.
        events: about the Job and the pods.
        job: the run's.
        now: the present time.

    Returns:
        None when Kubernetes has said nothing.
    """
    newest = max(pods, key=age, default=None)
    if newest is None:
        return _of_job(list(events), job, now)
    if newest.phase == "Failed":
        return _of_end(newest, sum(map(_failed, pods)))
    words = of_pod(newest, warning_of(event for event in events if event.about == newest.uid))
    if not words:
        return None
    found, since = cause(words), newest.condition("PodScheduled").since
    late = since is not None and now > since + GRACE
    return _why(f"Kubernetes says of the launcher's pod {newest.name}", found, lasts=late)


def age(pod: Pod) -> tuple[str, str]:
    """Sort key of launchers' pods, the oldest first."""
    return pod.metadata["creationTimestamp"], pod.name


def running(pod: Pod) -> bool:
    """Whether the launcher's container runs."""
    container = _launcher(pod)
    return container is not None and container.running


def ended(pod: Pod) -> bool:
    """Whether the launcher's container has ended."""
    return _end(pod) is not None


def started(pod: Pod) -> bool:
    """Whether the launcher's container runs or has run: whether it has a log."""
    return running(pod) or ended(pod)


def _why(who: str, found: Cause, *, lasts: bool) -> Why:
    return Why(f"{who}: {found}", found.hopeless and (found.at_once or lasts))


def _of_job(events: Sequence[Event], job: Object | None, now: datetime) -> Why | None:
    if job is not None and job.spec.get("suspend"):
        return Why("the launcher's Job is suspended: a queue holds it back")
    refused = [event for event in events if event.reason == "FailedCreate"]
    if not refused:
        return None
    again = sum(event.count for event in refused) > 1 or now > min(event.first or now for event in refused) + GRACE
    found = cause(said(refused[-1].reason, refused[-1].message))
    return _why("Kubernetes refuses the launcher's pod", found, lasts=again)


def _of_end(pod: Pod, failed: int) -> Why:
    """Of a pod whose launcher has ended.

    Args:
        pod: the newest.
        failed: launchers that have ended badly.
    """
    end, reason = _end(pod), pod.status.get("reason")
    if end is None or reason:  # Evicted, shut down with its node, preempted
        return Why(f"the launcher's pod {pod.name} was ended: {_short(of_pod(pod, ''))}")
    # Without a message of its own, Kubernetes gives the end of the launcher's log, which has lines of ranks.
    last = _short(end.message)
    quoted = last and f"{END_OF_LOG}{last}"
    if end.code == REPLACED:
        return Why(f"the launcher's pod {pod.name} was taken")
    if end.code == COULD_NOT_RUN:
        return Why(f"{CANNOT_RUN}{last or 'see its log'}", fatal=True, refused=True)
    if end.reason in NOT_STARTED or end.code in _NO_PROGRAM:
        runtime, log = (last, "") if end.reason in NOT_STARTED else ("", quoted)
        remedy = "Use an image whose entrypoint runs its arguments, and which has elastic-runtime[kubernetes]"
        words = f"the launcher's container does not start: {runtime or f'exit code {end.code}'}. {remedy}"
        return Why(f"{words}{log}", fatal=True)
    if end.reason == "OOMKilled":
        text = f"the launcher's pod {pod.name} ran out of memory (OOMKilled). Give the launcher more memory"
    else:
        text = f"the launcher's pod {pod.name} ended with code {end.code}. See the launcher's log{quoted}"
    return Why(text, failed >= CRASHES)


def _failed(pod: Pod) -> bool:
    end = _end(pod)
    return end is not None and end.code not in (0, REPLACED)


def _end(pod: Pod) -> Ended | None:
    container = _launcher(pod)
    return container.ended if container else None


def _launcher(pod: Pod) -> Container | None:
    return pod.container(LAUNCHER_CONTAINER)


def _short(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= MAX_WORDS else words[: MAX_WORDS - 1] + "…"
