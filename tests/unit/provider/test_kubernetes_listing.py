from __future__ import annotations

from dataclasses import replace

from elastic_runtime.documents import to_json
from elastic_runtime.kubernetes.objects import Object, Pod
from elastic_runtime.run import runobjects
from elastic_runtime.run.headline import headline
from elastic_runtime.run.runobjects import Part
from elastic_runtime.run.status import Phase, Status
from elastic_training.clusters.kubernetes.status.judgement import summaries
from elastic_training.clusters.types import RunRef
from tests.unit.provider.kubernetes_objects import BEGAN, RUNNING, SPEC, Plain, ended, pod, root_map


def said(phase: Phase, uid: str = SPEC.uid) -> Object:
    """The metadata of a status."""
    words = headline(Status(SPEC.name, uid, phase, "so it is", BEGAN, world_size=2))
    labels = runobjects.labels(SPEC.name, uid, Part.STATUS)
    marks = {runobjects.HEADLINE: to_json(words)}
    return Object({"metadata": {"name": f"{SPEC.name}-status", "labels": labels, "annotations": marks}})


def launcher(state: Plain) -> Pod:
    made = pod(state=state, phase="Running")
    made.raw["metadata"]["labels"] = runobjects.labels(SPEC.name, SPEC.uid, Part.LAUNCHER)
    return made


REF = RunRef(SPEC.name, SPEC.uid)
ROOT = root_map(owner="me")


def test_a_run_whose_launcher_runs_is_as_the_launcher_says() -> None:
    told, doubtful = summaries([ROOT, said(Phase.RUNNING)], [launcher(RUNNING)])
    assert doubtful == []
    (run,) = told
    assert (run.ref, run.owner, run.created) == (REF, "me", BEGAN)
    assert (run.headline.phase, run.headline.world_size) == (Phase.RUNNING, 2)


def test_a_run_that_is_over_needs_no_launcher() -> None:
    told, doubtful = summaries([said(Phase.SUCCEEDED), ROOT], [])
    assert [each.headline.phase for each in told] == [Phase.SUCCEEDED]
    assert doubtful == []


def test_a_run_whose_launcher_has_not_spoken_or_does_not_run_needs_a_closer_look() -> None:
    assert summaries([ROOT], [launcher(RUNNING)]) == ([], [REF])
    assert summaries([ROOT, said(Phase.RUNNING)], [launcher(ended(1))]) == ([], [REF])
    assert summaries([ROOT, said(Phase.RUNNING, uid="another")], [launcher(RUNNING)]) == ([], [REF])


def test_what_is_being_created_or_deleted_is_not_listed() -> None:
    going = Object({**ROOT.raw, "metadata": {**ROOT.metadata, "deletionTimestamp": "2026-03-01T12:00:00Z"}})
    young = root_map(complete=False, spec=replace(SPEC, name="young"))
    assert summaries([going, young, said(Phase.RUNNING)], []) == ([], [])


def test_what_only_looks_like_ours_is_passed_over() -> None:
    stranger = Object({"metadata": {"name": "stranger", "labels": {runobjects.MANAGED_BY_LABEL: runobjects.PREFIX}}})
    assert summaries([stranger], []) == ([], [])
    labelled = Object({**ROOT.raw, "metadata": {**ROOT.metadata, "name": "stranger"}})
    assert summaries([labelled, said(Phase.SUCCEEDED)], []) == ([], [])
