"""All runs of a namespace at a glance, from the metadata of their objects. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from elastic_runtime.kubernetes.objects import Object, Pod
from elastic_runtime.run import runobjects
from elastic_runtime.run.runobjects import Part
from elastic_training.clusters.kubernetes.status import diagnosis
from elastic_training.clusters.kubernetes.status.judgement import read_headline
from elastic_training.clusters.types import RunRef, RunSummary


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
            told.append(RunSummary(ref, owner, thing.created, headline))
        else:
            doubtful.append(ref)
    return told, doubtful


def _is_complete_root(thing: Object, ref: RunRef) -> bool:
    """Whether it stands for a run that is there. Labels can be anything, but a run's objects have the run's name."""
    is_complete = runobjects.COMPLETE in thing.annotations and not thing.going
    return is_complete and thing.name == runobjects.ObjectNames(ref.name).root
