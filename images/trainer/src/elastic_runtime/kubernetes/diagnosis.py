"""Diagnosis of pods that do not run, from what Kubernetes reports. Pure.

Kubernetes tells in half a dozen places why a pod does not run, and goes on trying whatever it is. Most stands in the
pods themselves and in what makes them; for what the kubelet says of mounts and of images there are events only. Here it
is brought into one form, ``REASON: MESSAGE``, and sorted into what may pass by itself (no room: an autoscaler may bring
some; a quota that others fill; a registry that stumbles) and what will not (an image that does not exist), each with a
remedy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from elastic_runtime.kubernetes.objects import Container, Ended, Event, Object, Pod
from elastic_runtime.kubernetes.quantities import exceeds
from elastic_runtime.run.status_failure import END_OF_LOG

GRACE = timedelta(seconds=40)
"""For which what is :attr:`Cause.hopeless` may still be a slip: a Secret that is about to be created. The kubelet pulls
an image again after 10 s, then after 20 s."""
MAX_WORDS = 600
"""Characters of Kubernetes' own words."""
_GRAVE = re.compile("Failed|Err|Inspect|Network|Evict|Sandbox")
"""Reasons of warnings that keep a pod from running; others (``MissingClusterDNS``) do not."""
_PASSING = re.compile(
    "time?d? ?out|deadline exceeded|too ?many ?requests|connection re(fused|set)|no such host|EOF$"
    r"|\b429\b|\b50[234]\b",
    re.IGNORECASE,
)
"""Somebody who stumbles, rather than one who has no such thing."""


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: re.Pattern[str]
    """Found in ``REASON: MESSAGE``."""
    remedy: str
    hopeless: Callable[[str], bool] = lambda _: False
    at_once: bool = False


def _passes(pattern: str, remedy: str) -> _Rule:
    return _Rule(re.compile(pattern, re.IGNORECASE | re.DOTALL), remedy)


def _stays(pattern: str, remedy: str, *, at_once: bool = False) -> _Rule:
    found = re.compile(pattern, re.IGNORECASE | re.DOTALL)
    return _Rule(found, remedy, lambda words: not _PASSING.search(words), at_once)


_IMAGE = "(ErrImagePull|ImagePullBackOff|Failed to pull)"
_RULES = (
    # Before all others: what such a refusal says besides are its author's words.
    _stays(
        r"(Validating|Mutating)AdmissionPolicy '[^']*' with binding",
        "Change the pod template so that this policy admits it, or have the cluster's policy changed",
    ),
    _stays('admission webhook "[^"]*" denied', "Change the pod template so that this webhook admits it"),
    _stays("InvalidImageName", "Correct the image's name", at_once=True),
    _stays("ErrImageNeverPull", "Load the image into the nodes, or let them pull it", at_once=True),
    _stays(
        f"{_IMAGE}.*(unauthorized|denied|authentication required|no basic auth|forbidden)",
        "Name an image pull secret that may read this image, or correct the image's name",
    ),
    _stays(
        f"{_IMAGE}.*(not found|manifest unknown|does not exist|no match for platform|invalid reference)",
        "Correct the image's name or tag, or push it",
    ),
    _stays(
        f"{_IMAGE}.*HTTP response to HTTPS client",
        "The registry speaks plain HTTP, which the nodes refuse: serve it with TLS, or allow that in their containerd",
    ),
    _stays(
        f"{_IMAGE}.*x509: ",
        "Have the nodes trust the registry's certificate, or give it one that they trust",
    ),
    _passes(_IMAGE, "Check the image's name, and that the nodes reach its registry"),
    _stays("runAsNonRoot and image", "Use an image whose user is not root, or set runAsUser"),
    _stays(
        r"serviceaccounts? \S+ not found",
        "Create it in this namespace, as deploy/rbac.yaml of this project does, or correct its name",
    ),
    _stays(
        r"(secret|configmap|persistentvolumeclaim)s? \S+ not found",
        "Create it in this namespace, or correct its name",
    ),
    _Rule(
        re.compile("quota", re.IGNORECASE),
        "Ask for less, or have the quota raised; it goes on when there is room",
        exceeds,
        at_once=True,
    ),
    _stays(
        "PodSecurity|security policy",
        "Change the pod template so that this policy admits it, or have the namespace's policy changed",
    ),
    _stays("FailedCreate.*(is invalid|Invalid value)", "Correct the pod template"),
    _stays("FailedCreate.*forbidden", "Ask the cluster's administrators for what is forbidden"),
    _stays(
        "(CreateContainerError|RunContainerError|StartError|ContainerCannotRun).*(not found|no such file|permission)",
        "Use an image that has elastic-runtime installed, and whose entrypoint executes its arguments",
    ),
    _stays("CreateContainerConfigError", "Create the Secret or ConfigMap that the pod refers to"),
    _stays("(Create|Run)ContainerError", "Correct what the container refers to: its command, its volumes"),
    _passes("SchedulingGated", "Whatever has set the gate takes it away"),
    _passes("Unschedulable.*Insufficient", "Ask for less per pod, or add nodes that have it"),
    _passes("Unschedulable.*(selector|affinity)", "Correct node selector and affinity, or add nodes that match them"),
    _passes("Unschedulable.*taint", "Add a toleration, or nodes without that taint"),
    _passes("Unschedulable", "It runs as soon as a node has room"),
    _passes("OOMKilled", "Give it more memory"),
    _stays("(FailedMount|FailedAttachVolume).*(not found|references non-existent)", "Create what the pod mounts"),
    _passes("FailedMount|FailedAttachVolume", "Check the volumes of the pod template"),
    _passes("CrashLoopBackOff|ended with code", "Look at what it said: kubectl logs --previous"),
    _passes("Evicted", "Ask for as much as it uses, so that nodes are not overcommitted"),
)
"""The first that is found counts."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a pod does not run."""

    words: str
    """``REASON: MESSAGE`` of Kubernetes, shortened."""
    remedy: str = ""
    """A sentence, without its full stop; empty when there is none."""
    hopeless: bool = False
    """Waiting will not help, once it has lasted for :data:`GRACE`."""
    at_once: bool = False
    """That it is, it is from the first moment on."""

    def __str__(self) -> str:
        return f"{self.words.rstrip('.')}. {self.remedy}" if self.remedy else self.words


def cause(words: str) -> Cause:
    """Return the cause that ``REASON: MESSAGE`` means."""
    rule = next((each for each in _RULES if each.pattern.search(words)), None)
    short = words if len(words) <= MAX_WORDS else f"{words[: MAX_WORDS - 1]}…"
    return Cause(short, rule.remedy, rule.hopeless(words), rule.at_once) if rule else Cause(short)


def needs_events(pod: Pod) -> bool:
    """Whether only events can tell why it does not run."""
    if pod.going or pod.over:
        return False
    return any(each.waiting and each.waiting.reason in _SILENT for each in pod.containers)


NOT_STARTED = ("StartError", "ContainerCannotRun")
"""Reasons of a container that never ran: its message is the runtime's. Any other may be the end of its log, by the
container's ``terminationMessagePolicy``."""
_SILENT = ("", "ContainerCreating", "PodInitializing", "ImagePullBackOff")
"""Reasons of a container that waits, which tell nothing."""


def warning_of(events: Iterable[Event]) -> str:
    """The newest warning among events of one pod, as ``REASON: MESSAGE``; that of an image tells its cause."""
    warnings = sorted((each for each in events if each.warning and _GRAVE.match(each.reason)), key=lambda it: it.last)
    texts = [said(each.reason, each.message) for each in warnings]
    causes = [text for text in texts if "Failed to pull" in text]
    return (causes or texts or [""])[-1]


def of_maker(maker: Object) -> str:
    """Why a ReplicaSet makes no pods, as ``REASON: MESSAGE``; empty when it does."""
    failure = maker.condition("ReplicaFailure")
    return said(failure.reason, failure.message) if failure.holds else ""


def of_pod(pod: Pod, warning: str) -> str:
    """Why it does not run, as ``REASON: MESSAGE``; empty when it does, or will in a moment, or is being deleted.

    Args:
        pod: as Kubernetes serves it.
        warning: its newest warning event, in the same form.
    """
    if pod.going:
        return ""
    if pod.phase == "Failed":
        return said(pod.status.get("reason", ""), pod.status.get("message", "")) or _end(pod) or "Failed"
    placed = pod.condition("PodScheduled")
    if placed.holds is False:
        return said(placed.reason, placed.message)
    for container in pod.containers:
        if found := container.waiting:
            return _of_waiting(pod, found.reason, found.message, warning)
    return ""


def _of_waiting(pod: Pod, reason: str, message: str, warning: str) -> str:
    match reason:
        case "CrashLoopBackOff":
            return _end(pod) or said(reason, message)
        case "ImagePullBackOff" | "ErrImagePull":
            return warning if "Failed to pull" in warning and len(warning) > len(message) else said(reason, message)
        case reason if reason in _SILENT:
            return warning
        case _:
            return said(reason, message)


def said(reason: str, message: str) -> str:
    """``REASON: MESSAGE``, as far as there is either; in one line."""
    return " ".join(": ".join(part for part in (reason, message) if part).split())


def _end(pod: Pod) -> str:
    """How its first container that has ended did so, this time or the last."""
    ends = ((each, each.ended or each.ended_before) for each in pod.containers)
    return next((_ended(container, how) for container, how in ends if how), "")


def _ended(container: Container, how: Ended) -> str:
    message = how.message and f"{'. ' if how.reason in NOT_STARTED else END_OF_LOG}{how.message}"
    return said(how.reason, f"container {container.name} ended with code {how.code}{message}")


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing that keeps worker pods from running."""

    cause: Cause
    pods: tuple[str, ...] = ()
    """Names; none when it keeps pods from being made at all."""

    @property
    def sentence(self) -> str:
        """For people, with the remedy."""
        more = f" and {len(self.pods) - 1} more" if len(self.pods) > 1 else ""
        who = f"worker pod {self.pods[0]}{more}" if self.pods else "making worker pods"
        return f"Kubernetes says of {who}: {self.cause}"


def troubles(replica_set: Object | None, pods: Iterable[Pod], warnings: Mapping[str, str]) -> tuple[Trouble, ...]:
    """Return the reasons why workers do not run, each once.

    Args:
        replica_set: of the workers, if it is there.
        pods: of the workers.
        warnings: newest warning event by uid of a pod, as ``REASON: MESSAGE``.
    """
    found: dict[str, list[str]] = {}
    if replica_set and (words := of_maker(replica_set)):
        found[words] = []
    for pod in pods:
        if words := of_pod(pod, warnings.get(pod.uid, "")):
            found.setdefault(words, []).append(pod.name)
    return tuple(Trouble(cause(words), tuple(sorted(names))) for words, names in found.items())
