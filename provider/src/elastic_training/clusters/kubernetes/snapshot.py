"""A look at all objects of a run, for threads, in the order in which nothing can be missed."""

from __future__ import annotations

from elastic_runtime import runobjects
from elastic_runtime.errors import MissingRight
from elastic_runtime.runobjects import ObjectNames, Part
from elastic_training.clusters.document import RunDocument
from elastic_training.clusters.kubernetes import diagnosis, resources
from elastic_training.clusters.kubernetes.api import Api
from elastic_training.clusters.kubernetes.resources import CONFIG_MAPS, EVENTS, JOBS, PODS, Object
from elastic_training.clusters.kubernetes.status import Published, Seen, finished, read_published


def read_seen(api: Api, found: RunDocument) -> Seen:
    """All that matters now of the run of this root."""
    published = _read_published(api, found)
    if published.status is not None and published.status.phase.final:
        return Seen(found, published, None, ())
    job, pods = read_launchers(api, found)
    events: list[Object] = []
    if finished(job):
        # The final status was written before the Job ended; so whoever reads it afterwards finds it.
        published = _read_published(api, found)
    if not any(diagnosis.running(pod) for pod in pods):
        events = _events(api, job, pods)
    return Seen(found, published, job, tuple(pods), tuple(events))


def read_launchers(api: Api, found: RunDocument) -> tuple[Object | None, list[Object]]:
    """The Job, if it is there and of this incarnation, and its pods."""
    job = api.find(JOBS, ObjectNames(found.ref.name).launcher)
    if job is not None and resources.labels_of(job).get(runobjects.UID_LABEL) != found.ref.uid:
        job = None
    selector = runobjects.selector(run=found.ref.name, uid=found.ref.uid, part=Part.LAUNCHER)
    return job, api.list(PODS, selector)


def _event_fields(job: Object | None, pods: list[Object]) -> list[str]:
    """Field selectors of what tells why no launcher runs."""
    newest = max(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"]), default=None)
    about = [thing for thing in (job, newest) if thing is not None]
    return [f"involvedObject.uid={resources.uid_of(thing)}" for thing in about]


def _events(api: Api, job: Object | None, pods: list[Object]) -> list[Object]:
    try:
        return [event for fields in _event_fields(job, pods) for event in api.list(EVENTS, fields=fields)]
    except MissingRight:
        return []  # Kubernetes' words are fewer then, that is all.


def _read_published(api: Api, found: RunDocument) -> Published:
    return read_published(api.find(CONFIG_MAPS, ObjectNames(found.ref.name).status))
