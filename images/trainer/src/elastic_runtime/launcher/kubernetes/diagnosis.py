"""What Kubernetes says of worker pods that do not run, and what to do about it. Pure.

Everything stands in the pods and in their ReplicaSet themselves, but what the kubelet says of mounts and of images, for
which there are events only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from elastic_runtime.launcher.facts import Refusal
from elastic_runtime.launcher.kubernetes.interface import Object, name_of, uid_of

MAX_TROUBLES = 3
"""Different ones that a refusal tells."""
MAX_WORDS = 600
"""Characters of Kubernetes' own words."""
_GRAVE = re.compile("Failed|Err|Inspect|Network|Evict|Sandbox")
"""Reasons of warnings that keep a pod from running; others (``MissingClusterDNS``) do not."""


@dataclass(frozen=True, slots=True)
class _Remedy:
    pattern: re.Pattern[str]
    """Found in ``REASON: MESSAGE``."""
    text: str
    hopeless: bool = False
    """Waiting will not help; all else may be over by itself."""


def _remedy(pattern: str, text: str, *, hopeless: bool = False) -> _Remedy:
    return _Remedy(re.compile(pattern, re.IGNORECASE | re.DOTALL), text, hopeless)


_IMAGE = "(ErrImagePull|ImagePullBackOff|Failed to pull)"
_REMEDIES = (
    _remedy("InvalidImageName", "Correct the image's name", hopeless=True),
    _remedy("ErrImageNeverPull", "Load the image into the nodes, or let them pull it", hopeless=True),
    _remedy(
        f"{_IMAGE}.*(unauthorized|denied|authentication required|no basic auth|forbidden)",
        "Name an image pull secret that may read this image, or correct the image's name",
        hopeless=True,
    ),
    _remedy(
        f"{_IMAGE}.*(not found|manifest unknown|does not exist|no match for platform|invalid reference)",
        "Correct the image's name or tag, or push it",
        hopeless=True,
    ),
    _remedy(_IMAGE, "Check the image's name, and that the nodes reach its registry"),
    _remedy("runAsNonRoot and image", "Use an image whose user is not root, or set runAsUser", hopeless=True),
    _remedy(
        r"(secret|configmap|persistentvolumeclaim|serviceaccount)s? \S+ not found",
        "Create it in this namespace, or correct its name",
        hopeless=True,
    ),
    _remedy("exceeded quota|quota", "Ask for less, or have the quota raised; it goes on when there is room"),
    _remedy(
        "PodSecurity|security policy",
        "Change the pod template so that this policy admits it, or have the namespace's policy changed",
        hopeless=True,
    ),
    _remedy("admission webhook", "Change the pod template so that this webhook admits it", hopeless=True),
    _remedy("FailedCreate.*(is invalid|Invalid value)", "Correct the pod template", hopeless=True),
    _remedy("FailedCreate.*forbidden", "Ask the cluster's administrators for what is forbidden", hopeless=True),
    _remedy(
        "(CreateContainerError|RunContainerError|StartError|ContainerCannotRun).*(not found|no such file|permission)",
        "Use an image that has elastic-runtime installed, and whose entrypoint executes its arguments",
        hopeless=True,
    ),
    _remedy("Unschedulable.*Insufficient", "Ask for less per worker, or add nodes that have it"),
    _remedy("Unschedulable.*(selector|affinity)", "Correct node selector and affinity, or add nodes that match them"),
    _remedy("Unschedulable.*taint", "Add a toleration, or nodes without that taint"),
    _remedy("Unschedulable", "It runs as soon as a node has room"),
    _remedy("OOMKilled", "Give the workers more memory"),
    _remedy("FailedMount|FailedAttachVolume", "Check the volumes of the pod template"),
    _remedy("CrashLoopBackOff|ended with code", "Look at what it said: kubectl logs --previous"),
    _remedy("Evicted", "Ask for as much as the workers use, so that nodes are not overcommitted"),
)


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing that keeps worker pods from running."""

    words: str
    """``REASON: MESSAGE`` of Kubernetes."""
    pods: tuple[str, ...] = ()
    """Names; none when it keeps pods from being made at all."""

    @property
    def _remedy(self) -> _Remedy | None:
        return next((each for each in _REMEDIES if each.pattern.search(self.words)), None)

    @property
    def hopeless(self) -> bool:
        """Waiting will not help."""
        return self._remedy is not None and self._remedy.hopeless

    @property
    def sentence(self) -> str:
        """For people, with the remedy."""
        more = f" and {len(self.pods) - 1} more" if len(self.pods) > 1 else ""
        who = f"worker pod {self.pods[0]}{more}" if self.pods else "making worker pods"
        words = self.words.rstrip(".") if len(self.words) <= MAX_WORDS else f"{self.words[: MAX_WORDS - 1]}…"
        return f"Kubernetes says of {who}: {words}" + (f". {self._remedy.text}" if self._remedy else "")


def troubles(replica_set: Object | None, pods: Iterable[Object], warnings: Mapping[str, str]) -> tuple[Trouble, ...]:
    """What keeps workers from running, each once.

    Args:
        replica_set: of the workers, if it is there.
        pods: of the workers.
        warnings: newest warning event by uid of a pod, as ``REASON: MESSAGE``.
    """
    found: dict[str, list[str]] = {}
    for words in _of_replica_set(replica_set) if replica_set else ():
        found[words] = []
    for pod in pods:
        if words := of_pod(pod, warnings.get(uid_of(pod), "")):
            found.setdefault(words, []).append(name_of(pod))
    return tuple(Trouble(words, tuple(sorted(names))) for words, names in found.items())


def refusal(found: tuple[Trouble, ...]) -> Refusal | None:
    """The same for the decision."""
    if not found:
        return None
    sentences = [each.sentence for each in found[:MAX_TROUBLES]]
    return Refusal("; ".join(sentences), any(each.hopeless for each in found))


def is_going(pod: Object) -> bool:
    """Whether it is being deleted."""
    return bool(pod["metadata"].get("deletionTimestamp"))


def is_over(pod: Object) -> bool:
    """Whether nothing runs in it any more, nor will; the pod itself may take its time to be removed."""
    if (pod.get("status") or {}).get("phase") in ("Failed", "Succeeded"):
        return True
    return is_going(pod) and not any("running" in (each.get("state") or {}) for each in _containers(pod))


def needs_events(pod: Object) -> bool:
    """Whether only events can tell why it does not run."""
    if is_going(pod) or is_over(pod):
        return False
    return any(reason in ("ContainerCreating", "PodInitializing", "ImagePullBackOff") for reason, _ in _waiting(pod))


def warning_of(events: Iterable[Object]) -> str:
    """The newest warning among events of one pod, as ``REASON: MESSAGE``; that of an image tells its cause."""
    warnings = [event for event in events if event.get("type") == "Warning" and _GRAVE.match(event.get("reason", ""))]
    warnings.sort(key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))
    texts = [f"{event.get('reason', '')}: {event.get('message', '')}".strip() for event in warnings]
    causes = [text for text in texts if "Failed to pull" in text]
    return (causes or texts or [""])[-1]


def of_pod(pod: Object, warning: str) -> str:
    """Why it does not run, as ``REASON: MESSAGE``; empty when it does, or will in a moment, or is being deleted.

    Args:
        pod: as Kubernetes serves it.
        warning: its newest warning event, in the same form.
    """
    if is_going(pod):
        return ""
    status = pod.get("status") or {}
    if status.get("phase") == "Failed":
        said = _said(status.get("reason", ""), status.get("message", ""))
        return said or next(_terminated(pod), "Failed")
    if unscheduled := next(_unscheduled(pod), ""):
        return unscheduled
    for reason, message in _waiting(pod):
        if reason == "CrashLoopBackOff":
            return next(_terminated(pod), f"{reason}: {message}")
        if reason == "ImagePullBackOff":
            return warning if "Failed to pull" in warning else _said(reason, message)
        if reason in ("ContainerCreating", "PodInitializing"):
            return warning
        return _said(reason, message)
    return ""


def _said(reason: str, message: str) -> str:
    return ": ".join(part for part in (reason, message) if part)


def _of_replica_set(replica_set: Object) -> Iterator[str]:
    for condition in (replica_set.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
            yield _said(condition.get("reason", ""), condition.get("message", ""))


def _unscheduled(pod: Object) -> Iterator[str]:
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            yield _said(condition.get("reason", ""), condition.get("message", ""))


def _containers(pod: Object) -> Iterator[Object]:
    status = pod.get("status") or {}
    for key in ("initContainerStatuses", "containerStatuses"):
        yield from status.get(key) or ()


def _waiting(pod: Object) -> Iterator[tuple[str, str]]:
    for container in _containers(pod):
        if waiting := (container.get("state") or {}).get("waiting"):
            yield waiting.get("reason", ""), waiting.get("message", "")


def _terminated(pod: Object) -> Iterator[str]:
    """How its containers ended, the last time."""
    for container in _containers(pod):
        for state in (container.get("state") or {}, container.get("lastState") or {}):
            if ended := state.get("terminated"):
                how = f"container {container.get('name', '')} ended with code {ended.get('exitCode')}"
                yield _said(ended.get("reason", ""), f"{how} {ended.get('message', '')}".strip())
