"""Why a run has fewer workers than it wants, in sentences. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from elastic_runtime.kubernetes.diagnosis import Cause, cause, of_maker, of_pod
from elastic_runtime.kubernetes.objects import Object, Pod
from elastic_runtime.launcher.decision.facts import Refusal

MAX_TROUBLES = 3
"""Different ones that a refusal tells."""


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
    """What keeps workers from running, each once.

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


def refusal(found: tuple[Trouble, ...]) -> Refusal | None:
    """The same for the decision, which waits a while before it believes that there is no hope."""
    if not found:
        return None
    sentences = [each.sentence for each in found[:MAX_TROUBLES]]
    return Refusal("; ".join(sentences), any(each.cause.hopeless for each in found))
