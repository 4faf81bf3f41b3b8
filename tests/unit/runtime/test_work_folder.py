"""Folders of agents in the place for temporary files: a killed agent's is removed by the next, and no other."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_runtime.agent import work_folder
from elastic_runtime.agent.work_folder import MOST, WorkFolder, prefix, remove_abandoned
from elastic_runtime.errors import ClusterUnavailable

AGENT = """
from elastic_runtime.agent.work_folder import WorkFolder
folder = WorkFolder()
(folder.path / "outputs").mkdir()
(folder.path / "outputs" / "model.pt").write_bytes(b"large")
print(folder.path, flush=True)
input()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files are; there is nothing in shared memory."""
    (place := tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    monkeypatch.setattr(work_folder, "SHARED_MEMORY", tmp_path / "none")
    return place


@pytest.fixture
def agent(temporary: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process with a folder of its own, once it has made it."""
    with subprocess.Popen(
        [sys.executable, "-c", AGENT],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert Path(process.stdout.readline().strip()).is_dir()
        yield process
        process.kill()


def test_what_a_killed_agent_has_left_is_removed(agent: subprocess.Popen[str], temporary: Path) -> None:
    remove_abandoned()
    assert len(list(temporary.rglob("model.pt"))) == 1, "it lives"
    agent.kill()
    agent.wait()
    remove_abandoned()
    assert list(temporary.iterdir()) == []


def test_a_folder_in_shared_memory_is_removed_too(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work_folder, "SHARED_MEMORY", tmp_path / "memory")
    (tmp_path / "memory" / f"{prefix()}left").mkdir(parents=True)
    temporary.rmdir()
    remove_abandoned()
    assert list((tmp_path / "memory").iterdir()) == []


def test_nothing_else_is_removed(temporary: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    for folder in (temporary / "elastic-00000000-of-another-boot", temporary / "outputs-mine", elsewhere):
        (folder / "kept").mkdir(parents=True)
    (temporary / f"{prefix()}link").symlink_to(elsewhere)
    (temporary / f"{prefix()}file").touch()
    before = sorted(tmp_path.rglob("*"))
    remove_abandoned()
    assert sorted(tmp_path.rglob("*")) == before


def test_another_users_is_left_alone(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder := temporary / f"{prefix()}theirs").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    remove_abandoned()
    assert folder.is_dir()


def test_so_many_at_once(temporary: Path) -> None:
    for number in range(MOST + 3):
        (temporary / f"{prefix()}{number}").mkdir()
    remove_abandoned()
    assert len(list(temporary.iterdir())) == 3


def test_those_that_are_held_do_not_count(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_folder, "MOST", 1)
    held = [WorkFolder() for _ in range(30)]
    (temporary / f"{prefix()}left").mkdir()
    remove_abandoned()
    assert sorted(temporary.iterdir()) == sorted(each.path for each in held)
    for each in held:
        each.remove()


@pytest.mark.parametrize("removals", [1, 4, 5])
def test_one_that_is_taken_for_abandoned_while_it_is_made_is_made_again(
    removals: int, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, made = work_folder.new_folder, []

    def removed(prefix: str, within: Path | None) -> Path:
        made.append(make(prefix, within))
        if len(made) <= removals:
            remove_abandoned()
        return made[-1]

    monkeypatch.setattr(work_folder, "new_folder", removed)
    if removals == 5:
        with pytest.raises(ClusterUnavailable, match="other processes remove the folders"):
            WorkFolder()
    else:
        folder = WorkFolder()
        assert (len(made), folder.path.is_dir()) == (removals + 1, True)
        folder.remove()
    assert list(temporary.iterdir()) == []


def test_a_file_system_without_locks_keeps_all(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(descriptor: int, operation: int) -> None:
        raise OSError(38, os.strerror(38))

    monkeypatch.setattr(work_folder.fcntl, "flock", refused)
    folder = WorkFolder()
    remove_abandoned()
    assert folder.path.is_dir()
    folder.remove()
    assert not folder.path.exists()
    shutil.rmtree(temporary)
    remove_abandoned()
