"""Kubernetes' own words about a launcher that does not run, and what to make of them. Pure.

Kubernetes tells in half a dozen places why a pod does not run, and goes on trying whatever it is. Here it is sorted
into what may pass by itself (no room: an autoscaler may bring some; a quota that others fill) and what will not (an
image that does not exist), each with a remedy. What may be a slip (a registry that stumbles, a Secret that is about to
be created) counts as fatal only after :data:`GRACE`, in which the kubelet has tried twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from elastic_runtime import runobjects
from elastic_runtime.kubernetes.quantities import exceeds
from elastic_training.clusters.kubernetes.resources import Object

GRACE = timedelta(seconds=40)
"""The kubelet pulls an image again after 10 s, then after 20 s."""
CRASHES = 3
"""Launchers that have ended badly, one after the other, before any has spoken."""
_LENGTH = 600
"""Characters kept of a message."""


@dataclass(frozen=True, slots=True)
class Words:
    """Why a launcher does not run."""

    text: str
    """What Kubernetes says."""
    fatal: bool = False
    """Waiting would not help."""
    remedy: str = ""
    """A sentence, without its full stop; may be empty when waiting is all there is to do."""

    def __str__(self) -> str:
        return f"{self.text}. {self.remedy}" if self.remedy else self.text


@dataclass(frozen=True, slots=True)
class _Rule:
    fatal: bool
    """After :data:`GRACE`, or at once."""
    at_once: bool
    remedy: str


_IMAGE = "Correct the image's name, or give the pods the right to pull it (pods' image pull secrets)"
_WAITING = {
    "InvalidImageName": _Rule(True, True, _IMAGE),
    "ErrImageNeverPull": _Rule(True, True, "Load the image into every node, or set another pull policy"),
    "ErrImagePull": _Rule(True, False, _IMAGE),
    "ImagePullBackOff": _Rule(True, False, _IMAGE),
    "ImageInspectError": _Rule(True, False, _IMAGE),
    "CreateContainerConfigError": _Rule(True, False, "Create the Secret or ConfigMap that the pod refers to"),
    "CreateContainerError": _Rule(True, False, "Correct what the container refers to: its command, its volumes"),
    "RunContainerError": _Rule(True, False, "Correct the container's command"),
}
"""By the reason of a container that waits; every other one is just waiting."""
_PASSING = re.compile(
    r"time?d? ?out|too ?many ?requests|\b429\b|\b50[234]\b|connection re(fused|set)|no such host|EOF$", re.I
)
"""A registry that stumbles, rather than one that has no such image."""
_CANNOT_START = ("StartError", "ContainerCannotRun")
_ACCOUNT = "Make the service account: deploy/rbac.yaml of this project does; or name another one in the pods' settings"
_RULES = "Change the pods so that the namespace's rules accept them, or ask who runs the cluster"
_MOUNTS = ("FailedMount", "FailedAttachVolume")
_ABSENT = re.compile(r"not found|references non-existent")


def about(pods: Sequence[Object], events: Iterable[Object], job: Object | None, now: datetime) -> Words | None:
    """Why there is no launcher at work.

    Args:
        pods: the run's launchers, past and present.
        events: about the Job and the pods.
        job: the run's.
        now: the present time.

    Returns:
        None when Kubernetes has said nothing.
    """
    newest = max(pods, key=_created, default=None)
    if newest is None:
        return _about_job(events, job, now)
    said = [event for event in events if event["involvedObject"].get("uid") == newest["metadata"]["uid"]]
    return _ended(newest, len([pod for pod in pods if _failed(pod)])) or _waiting(newest, said, now) or _placed(newest)


def _about_job(events: Iterable[Object], job: Object | None, now: datetime) -> Words | None:
    if job is not None and job["spec"].get("suspend"):
        return Words("the launcher's Job is suspended: a queue holds it back")
    refused = [event for event in events if event.get("reason") == "FailedCreate"]
    if not refused:
        return None
    message = _short(refused[-1].get("message", ""))
    text = f"Kubernetes refuses the launcher's pod: {message}"
    if "exceeded quota" in message:
        if exceeds(message):
            return Words(text, True, "Ask for less than the namespace's quota, or raise it")
        return Words(text, False, "The quota is used up; waiting for others to end")
    tries = sum(event.get("count") or 1 for event in refused)
    oldest = min((_time(event.get("firstTimestamp")) or now for event in refused), default=now)
    remedy = _ACCOUNT if "serviceaccount" in message else _RULES
    return Words(text, tries > 1 or now > oldest + GRACE, remedy)


def _ended(pod: Object, failed: int) -> Words | None:
    """Of a pod whose launcher has ended."""
    status = pod["status"]
    if status.get("phase") != "Failed":
        return None
    state = _state(pod, "terminated")
    name = pod["metadata"]["name"]
    if state is None or status.get("reason"):  # Evicted, shut down with its node, preempted
        text = " ".join(filter(None, (status.get("reason"), status.get("message"))))
        return Words(f"the launcher's pod {name} was ended: {_short(text) or 'without a word'}")
    code, last = state.get("exitCode"), _short(state.get("message") or "")
    reason = state.get("reason", "")
    if code == runobjects.REPLACED:
        return Words(f"the launcher's pod {name} was taken")
    if code == runobjects.COULD_NOT_RUN:
        return Words(f"the launcher cannot run: {last or 'see its log'}", True, "")
    if reason in _CANNOT_START or code in (126, 127, 128):
        remedy = "Use an image whose entrypoint runs its arguments, and which has elastic-runtime[kubernetes]"
        return Words(f"the launcher's container does not start: {last or f'exit code {code}'}", True, remedy)
    if reason == "OOMKilled":
        text, remedy = f"the launcher's pod {name} ran out of memory (OOMKilled)", "Give the launcher more memory"
    else:
        text, remedy = f"the launcher's pod {name} ended with code {code}", "See the launcher's log"
        text += f": {last}" if last else ""
    return Words(text, failed >= CRASHES, remedy)


def _waiting(pod: Object, events: Sequence[Object], now: datetime) -> Words | None:
    """Of a pod that has a node, and a container that does not run."""
    state = _state(pod, "waiting")
    if state is None:
        return None
    reason, message = state.get("reason", ""), _short(state.get("message") or "")
    rule = _WAITING.get(reason)
    over = now > (_time(_condition(pod, "PodScheduled").get("lastTransitionTime")) or now) + GRACE
    if rule is None:
        return _mount(events, over)
    more = next((_short(event["message"]) for event in events if event.get("reason") == "Failed"), "")
    text = f"{reason}: {more if len(more) > len(message) else message or more}"
    fatal = rule.at_once or (rule.fatal and over and not _PASSING.search(f"{message} {more}"))
    return Words(text, fatal, rule.remedy)


def _mount(events: Sequence[Object], over: bool) -> Words | None:
    failed = [event for event in events if event.get("reason") in _MOUNTS]
    if not failed:
        return None
    message = _short(failed[-1].get("message", ""))
    absent = bool(_ABSENT.search(message))
    remedy = "Create the volume, Secret or ConfigMap that the pod mounts" if absent else ""
    return Words(f"{failed[-1]['reason']}: {message}", over and absent, remedy)


def _placed(pod: Object) -> Words | None:
    """Of a pod that has no node."""
    condition = _condition(pod, "PodScheduled")
    if condition.get("status") != "False":
        return None
    reason = "a scheduling gate holds it" if condition.get("reason") == "SchedulingGated" else "no node takes it"
    return Words(f"the launcher's pod waits, {reason}: {_short(condition.get('message') or '')}".rstrip(": "))


def running(pod: Object) -> bool:
    """Whether the launcher's container runs."""
    return _state(pod, "running") is not None


def started(pod: Object) -> bool:
    """Whether the launcher's container runs or has run: whether it has a log."""
    return running(pod) or _state(pod, "terminated") is not None


def ended(pod: Object) -> bool:
    """Whether the launcher's container has ended."""
    return _state(pod, "terminated") is not None


def _failed(pod: Object) -> bool:
    state = _state(pod, "terminated")
    return state is not None and state.get("exitCode") not in (0, runobjects.REPLACED)


def _state(pod: Object, name: str) -> Mapping[str, Any] | None:
    for container in pod.get("status", {}).get("containerStatuses") or []:
        if container["name"] == runobjects.LAUNCHER_CONTAINER:
            state: Mapping[str, Any] | None = container.get("state", {}).get(name)
            return state
    return None


def _condition(pod: Object, kind: str) -> Mapping[str, Any]:
    conditions: list[Mapping[str, Any]] = pod.get("status", {}).get("conditions") or []
    return next((condition for condition in conditions if condition["type"] == kind), {})


def _created(pod: Object) -> tuple[str, str]:
    return pod["metadata"]["creationTimestamp"], pod["metadata"]["name"]


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _short(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= _LENGTH else words[: _LENGTH - 1] + "…"
