"""Asking the ranks of a run where they stand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from elastic_runtime.errors import RunNotFound
from elastic_runtime.run.rundir import RunDir
from elastic_runtime.run.spec import RunSpec
from elastic_training.clusters.fake import FakeCluster
from elastic_training.clusters.folder import read_document, write_document
from elastic_training.clusters.types import RunRef
from elastic_training.concurrency.bridge import run

SPEC = RunSpec(name="run", uid="1", command=("python", "train.py"))


def test_each_request_is_another_and_leaves_the_rest_of_the_document() -> None:
    cluster = FakeCluster()
    ref = run(cluster.claim(SPEC, "try 1")).ref
    before = cluster.runs["run"].document
    asked = []
    for _ in range(2):
        run(cluster.dump_stacks(ref))
        asked.append(cluster.runs["run"].document.stacks)
    assert before.stacks is None
    assert None not in asked
    assert len(set(asked)) == 2
    assert cluster.runs["run"].document.owner == "try 1"


def test_the_run_before_is_not_asked() -> None:
    cluster = FakeCluster()
    run(cluster.claim(SPEC, "try 1"))
    with pytest.raises(RunNotFound):
        run(cluster.dump_stacks(RunRef("run", "another")))
    assert cluster.runs["run"].document.stacks is None


def test_on_this_machine_the_launcher_finds_it_in_the_folder(tmp_path: Path) -> None:
    folder = RunDir(tmp_path / "run")
    folder.create(SPEC, "try 1")
    found = read_document(folder)
    assert found.stacks is None
    write_document(folder, found, replace(found, stacks="now"))
    assert folder.stacks_asked() == "now"
    assert read_document(folder).stacks == "now"
