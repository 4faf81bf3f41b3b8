"""A look at all objects of a run, in the order in which nothing can be missed."""

from __future__ import annotations

from elastic_runtime.errors import MissingRight
from elastic_runtime.kubernetes.client import Client
from elastic_runtime.kubernetes.objects import Event, Object, Pod
from elastic_runtime.kubernetes.resources import CONFIG_MAPS, EVENTS, JOBS, PODS
from elastic_runtime.run import runobjects
from elastic_runtime.run.runobjects import ObjectNames, Part
from elastic_training.clusters.document import RunDocument
from elastic_training.clusters.kubernetes.documents.root import of_run
from elastic_training.clusters.kubernetes.status import diagnosis
from elastic_training.clusters.kubernetes.status.judgement import Published, Seen, finished, read_published


async def read_seen(client: Client, found: RunDocument) -> Seen:
    """Read all objects of a run that its status follows from, newest state last."""
    published = await _read_published(client, found)
    if published.status is not None and published.status.phase.final:
        return Seen(found, published, None, ())
    job, pods = await _read_launchers(client, found)
    events: list[Event] = []
    if finished(job):
        # The final status was written before the Job ended; so whoever reads it afterwards finds it.
        published = await _read_published(client, found)
    if not any(map(diagnosis.running, pods)):
        events = await _events(client, job, pods)
    return Seen(found, published, job, tuple(pods), tuple(events))


async def _read_launchers(client: Client, found: RunDocument) -> tuple[Object | None, list[Pod]]:
    """The Job, if it is there and of this incarnation, and its pods."""
    job = await client.find(JOBS, ObjectNames(found.ref.name).launcher)
    if job is not None and not of_run(job, found.ref.uid):
        job = None
    selector = runobjects.selector(run=found.ref.name, uid=found.ref.uid, part=Part.LAUNCHER)
    return job, await client.list(PODS, selector)


async def _events(client: Client, job: Object | None, pods: list[Pod]) -> list[Event]:
    """Read the events of the Job and its newest pod, which say why no launcher runs. Empty without the right."""
    newest = max(pods, key=diagnosis.age, default=None)
    about = [thing.uid for thing in (job, newest) if thing is not None]
    try:
        return [event for uid in about for event in await client.list(EVENTS, fields=f"involvedObject.uid={uid}")]
    except MissingRight:
        return []  # Kubernetes' words are fewer then, that is all.


async def _read_published(client: Client, found: RunDocument) -> Published:
    return read_published(await client.find(CONFIG_MAPS, ObjectNames(found.ref.name).status))
