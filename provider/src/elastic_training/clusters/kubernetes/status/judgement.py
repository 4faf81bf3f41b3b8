"""How a run is doing, from the objects that were seen of it. Pure.

The launcher's own word counts, as long as it can speak. Where it cannot, because its pod does not run, the objects
speak for it: the run is pending, or suspended while another launcher comes, or has failed. Its own time limits do not
count down then, so they are applied here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from elastic_runtime.documents import from_json
from elastic_runtime.errors import FailureKind, InvalidDocument
from elastic_runtime.kubernetes.objects import Event, Object, Pod
from elastic_runtime.pool.pods.objects import POOL_LABEL
from elastic_runtime.run import runobjects
from elastic_runtime.run.headline import Headline
from elastic_runtime.run.runobjects import Part, Term
from elastic_runtime.run.status import Phase, Status
from elastic_training.clusters.document import RunDocument
from elastic_training.clusters.kubernetes.status import diagnosis
from elastic_training.clusters.kubernetes.status.diagnosis import Why
from elastic_training.clusters.types import RunRef, RunSummary


@dataclass(frozen=True, slots=True)
class Published:
    """Content of the status ConfigMap."""

    status: Status | None = None
    """None until a launcher has spoken."""
    holder: str | None = None
    """Uid of the pod of the launcher that leads the run."""


@dataclass(frozen=True, slots=True)
class Seen:
    """All that a status is made of."""

    root: RunDocument
    published: Published
    job: Object | None
    pods: tuple[Pod, ...]
    """Launchers, past and present."""
    events: tuple[Event, ...] = ()
    """About the Job and its pods; only needed while no launcher runs."""


def read_published(found: Object | None) -> Published:
    """Parse the published status. Raise InvalidDocument."""
    if found is None:
        return Published()
    text, term = found.data.get(runobjects.STATUS_KEY), read_term(found)
    return Published(status=from_json(Status, text) if text else None, holder=term.holder if term else None)


def read_term(found: Object) -> Term | None:
    """Parse the term of the launcher in leadership. None: there was none yet. Raise InvalidDocument."""
    text = found.annotations.get(runobjects.TERM)
    return from_json(Term, text) if text else None


def judge(seen: Seen, now: datetime) -> Status:
    """How the run is doing.

    ``launcher_lost`` may be said too early about objects that were not seen at one time: the Job's end may be seen
    before the final status that was written before it. Who reads one after the other reads the status last.
    """
    status = seen.published.status
    if status is not None and status.phase.final:
        return status
    at_work = any(_alive(pod, now) and _in_office(pod, seen.published.holder) for pod in seen.pods)
    if seen.root.complete and finished(seen.job):
        return _lost(seen, now)
    if status is None:
        return _pending(seen, now)
    return status if at_work else _replacing(seen, status, now)


def finished(job: Object | None) -> bool:
    """Whether there will be no more launchers."""
    return job is None or any(job.condition(each).holds for each in ("Complete", "Failed"))


def _alive(pod: Pod, now: datetime) -> bool:
    """Whether its launcher runs; that of a node that does not answer is said to run for ever."""
    return diagnosis.running(pod) and (pod.deadline is None or now < pod.deadline)


def _in_office(pod: Pod, holder: str | None) -> bool:
    return holder is None or pod.uid == holder


def _lost(seen: Seen, now: datetime) -> Status:
    """There is no launcher, and there will be none."""
    if seen.root.cancelled is not None:
        return _failed(seen, FailureKind.CANCELLED, f"cancelled: {seen.root.cancelled}")
    why = diagnosis.about(seen.pods, seen.events, seen.job, now)
    if why is not None and (why.refused or (why.fatal and seen.published.status is None)):
        return _failed(seen, _kind(why), str(why))
    reason = "the launcher is gone without a final status"
    return _failed(seen, FailureKind.LAUNCHER_LOST, f"{reason}: {why}" if why else reason)


def _pending(seen: Seen, now: datetime) -> Status:
    """No launcher has spoken yet."""
    reason = "the launcher is starting"
    if not any(diagnosis.running(pod) for pod in seen.pods):
        why = diagnosis.about(seen.pods, seen.events, seen.job, now)
        limit = seen.root.spec.recovery.start_timeout
        if failure := _hopeless(why, seen.root.created, limit, now, FailureKind.START_TIMEOUT):
            return _failed(seen, *failure)
        reason = str(why) if why else reason
    return replace(_unspoken(seen.root), reason=reason)


def _replacing(seen: Seen, status: Status, now: datetime) -> Status:
    """A launcher has spoken, and is not at work."""
    if any(_alive(pod, now) for pod in seen.pods):
        reason = "another launcher takes over"
    else:
        why = diagnosis.about(seen.pods, seen.events, seen.job, now)
        recovery, kind = seen.root.spec.recovery, FailureKind.MAX_WAIT_EXCEEDED
        limit = recovery.max_wait
        if status.phase is Phase.PAUSED:
            limit, kind = recovery.max_pause or math.inf, FailureKind.MAX_PAUSE_EXCEEDED
        since = max([status.updated, *_times(seen.pods)])
        if failure := _hopeless(why, since, limit, now, kind):
            return _failed(seen, *failure)
        reason = f"the launcher is being replaced: {why}" if why else "the launcher is being replaced"
    if status.phase is Phase.PAUSED:
        return replace(status, reason=f"{status.reason}; {reason}")
    return replace(status, phase=Phase.SUSPENDED, reason=reason, world_size=0)


def _hopeless(
    why: Why | None, since: datetime, limit: float, now: datetime, late: FailureKind
) -> tuple[FailureKind, str] | None:
    if why is not None and why.fatal:
        return _kind(why), str(why)
    if (now - since).total_seconds() > limit:
        return late, f"no launcher has run for {limit:g} s: {why or 'Kubernetes does not say why'}"
    return None


def _kind(why: Why) -> FailureKind:
    """Of what waiting does not help."""
    return FailureKind.LAUNCHER_ERROR if why.refused else FailureKind.POD_REFUSED


def _unspoken(root: RunDocument) -> Status:
    name, uid = root.ref.name, root.ref.uid
    size = root.spec.workers.start
    return Status(name, uid, Phase.PENDING, "the launcher is starting", root.created, target_size=size)


def _failed(seen: Seen, kind: FailureKind, reason: str) -> Status:
    """Said by the reader. Times are those of the objects, so that all readers say the same."""
    status = seen.published.status or _unspoken(seen.root)
    ended = max([status.updated, *_times(seen.pods)])
    return replace(status, phase=Phase.FAILED, failure=kind, reason=reason, world_size=0, finished=ended)


def _times(pods: Iterable[Pod]) -> list[datetime]:
    """When launchers came, and when they ended."""
    found = []
    for pod in pods:
        found += [pod.created, *(each.ended.at for each in pod.containers if each.ended and each.ended.at)]
    return found


def read_headline(found: Object) -> Headline | None:
    """That in the ConfigMap of a status; None when there is none that this version can read."""
    try:
        text = found.annotations.get(runobjects.HEADLINE)
        return from_json(Headline, text) if text else None
    except InvalidDocument:
        return None


@dataclass(frozen=True, slots=True)
class Announced:
    """Content of a status ConfigMap that is cheap to parse: see :class:`Headline`."""

    news: str = ""
    """Text that differs if the status has something that people and tasks wait for, or another launcher leads the run.
    Without a headline, it differs with every change."""
    final: bool = False
    """Whether the status is final. Without a headline, False."""


def announced(found: Object) -> Announced:
    """Parse the headline in a status ConfigMap, not its document."""
    headline = read_headline(found)
    text: str = headline.news if headline else found.data.get(runobjects.STATUS_KEY, "")
    return Announced(
        found.annotations.get(runobjects.TERM, "") + text, final=headline is not None and headline.phase.final
    )


def summaries(maps: Iterable[Object], launchers: Iterable[Pod]) -> tuple[list[RunSummary], list[RunRef]]:
    """Return summaries of runs whose launchers are trusted, and the runs that need a closer look.

    Args:
        maps: the ConfigMaps of all runs, at least their metadata.
        launchers: the pods of all launchers.
    """
    roots, headlines = [], {}
    for thing in maps:
        labels = thing.labels
        ref = RunRef(labels.get(runobjects.RUN_LABEL, ""), labels.get(runobjects.UID_LABEL, ""))
        part = labels.get(runobjects.PART_LABEL)
        if part == Part.STATUS and thing.name == runobjects.ObjectNames(ref.name).status:
            headlines[ref] = read_headline(thing)
        elif part == Part.ROOT and _is_complete_root(thing, ref):
            roots.append((ref, thing))
    running = {pod.labels.get(runobjects.UID_LABEL) for pod in launchers if diagnosis.running(pod)}
    told, doubtful = [], []
    for ref, thing in roots:
        headline = headlines.get(ref)
        if headline is not None and (headline.phase.final or ref.uid in running):
            owner = thing.annotations.get(runobjects.OWNER, "")
            told.append(RunSummary(ref, owner, thing.created, headline, thing.labels.get(POOL_LABEL, "")))
        else:
            doubtful.append(ref)
    return told, doubtful


def _is_complete_root(thing: Object, ref: RunRef) -> bool:
    """Whether it stands for a run that is there. Labels can be anything, but a run's objects have the run's name."""
    is_complete = runobjects.COMPLETE in thing.annotations and not thing.going
    return is_complete and thing.name == runobjects.ObjectNames(ref.name).root
