"""A run's script puts anything under any name into its run's folder: pipes, links, folders, huge and nested files."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import Mock

import pytest

from elastic_runtime.errors import ElasticError, InvalidDocument, InvalidSettings
from elastic_runtime.run.rundir import ReclaimNotice, RunDir
from elastic_runtime.run.spec import RunSpec, WorkersSpec
from elastic_runtime.run.status import Phase, Status, WorkerState, WorkerStatus
from elastic_training.clusters.fake import FakeCluster
from elastic_training.clusters.local import LocalCluster
from elastic_training.concurrency.bridge import run
from elastic_training.identity.naming import TaskIdentity
from elastic_training.identity.ownership import Owner
from elastic_training.lifecycle.retention import sweep

NOW = datetime.now(UTC)
HUGE = 9 << 20


def laid(root: Path, dag_id: str, **status: object) -> RunDir:
    """A run of which the launcher has spoken."""
    root.mkdir(mode=0o700, exist_ok=True)
    task = TaskIdentity(dag_id, "r", "train", -1, "ours")
    spec = RunSpec(task.name, f"uid of {dag_id}", ("python",), WorkersSpec(1, 2, 4))
    folder = RunDir(root / task.name)
    folder.create(spec, Owner(dag_id, "r", "train", -1, 1, "nonce", "ours").text())
    told = {"phase": Phase.SUCCEEDED, "reason": "done", "updated": NOW, "finished": NOW, **status}
    folder.write_status(Status(task.name, spec.uid, **told))  # type: ignore[arg-type]
    folder.log.write_text("a line\n")
    return folder


def pipe(path: Path) -> None:
    os.mkfifo(path)


def link(path: Path) -> None:
    path.symlink_to("/dev/zero")


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(HUGE)


def nested(path: Path) -> None:
    path.write_text("[" * 500 + "]" * 500)


NAMES = (
    "spec.json",
    "owner",
    "size",
    "record.json",
    "cancel",
    "stacks",
    "starter.json",
    "status.json",
    "headline.json",
)
KINDS = (pipe, link, Path.mkdir, huge, nested)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "runs"
    shutil.rmtree(tmp_path / "runs", ignore_errors=True)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", [*NAMES, "log"])
def test_a_file_of_one_run_stalls_and_fails_no_other(root: Path, name: str, kind: Callable[[Path], None]) -> None:
    good, evil = laid(root, "good"), laid(root, "evil")
    (evil.path / name).unlink(missing_ok=True)
    kind(evil.path / name)
    cluster = LocalCluster(root, sys.executable)
    assert good.path.name in {each.ref.name for each in run(cluster.list())}
    ref = run(cluster.find(good.path.name))
    assert run(cluster.status(ref)).phase is Phase.SUCCEEDED
    with suppress(ElasticError):
        run(cluster.status(run(cluster.find(evil.path.name))))


@pytest.mark.parametrize(
    "worker", ["../../../elsewhere/planted", "/etc/planted", "a/b", "..", "a\0b", ".hidden", "a\nb"]
)
def test_a_notice_stays_in_the_folder_of_its_run(root: Path, tmp_path: Path, worker: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    who = WorkerStatus(worker, "node", WorkerState.TRAINING, NOW, 1, (0,))
    folder = laid(root, "good", phase=Phase.RUNNING, finished=None, workers=(who,))
    fake = FakeCluster()
    ref = run(fake.claim(RunSpec("run", "1", ("python",), WorkersSpec(1, 1, 1)), "me")).ref
    fake.publish("run", workers=(who,))
    local = LocalCluster(root, sys.executable)
    for cluster, its in ((fake, ref), (local, run(local.find(folder.path.name)))):
        with pytest.raises(InvalidSettings, match="worker") as refused:
            run(cluster.reclaim(its, worker, timedelta(seconds=1)))
        assert str(refused.value).isprintable()
    if "/" in worker or "\0" in worker:
        with pytest.raises(InvalidDocument):
            folder.write_notice(worker, ReclaimNotice("drill", NOW))
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert list(folder.notices.iterdir()) == []


def test_a_folder_that_tells_of_another_run_is_none(root: Path) -> None:
    """Or the sweep at the end of any task would remove that run, by the age that a forged headline tells."""
    victim = laid(root, "payroll")
    evil = root / "evil"
    shutil.copytree(victim.path, evil)
    evil.chmod(0o700)
    forged = json.loads((evil / "headline.json").read_text())
    forged["finished"] = forged["updated"] = "1999-01-01T00:00:00Z"
    (evil / "headline.json").write_text(json.dumps(forged))
    cluster = LocalCluster(root, sys.executable)
    assert [each.headline.finished.year for each in run(cluster.list()) if each.headline.finished] == [NOW.year]
    run(sweep(cluster, "ours", Mock()))
    assert victim.exists()
    with pytest.raises(InvalidDocument):
        run(cluster.find("evil"))


def test_a_run_of_which_the_list_tells_another_age_stays(root: Path) -> None:
    victim = laid(root, "payroll")
    forged = json.loads((victim.path / "headline.json").read_text())
    forged["finished"] = forged["updated"] = "1999-01-01T00:00:00Z"
    (victim.path / "headline.json").write_text(json.dumps(forged))
    run(sweep(LocalCluster(root, sys.executable), "ours", Mock()))
    assert victim.exists()
