"""Another user of the machine, who looks for a checkpoint that can be read or altered."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_runtime.checkpoint import open_store
from elastic_runtime.checkpoint.checkpoints import Checkpoints, PartStream
from elastic_runtime.errors import InvalidSettings
from tests.security.runtime.hostile_checkpoints import CONTENT, NAME, lay, manifest, newest, part, write

MASKS = [0, 0o022, 0o077, 0o177]


@pytest.fixture(params=MASKS, ids=oct)
def mask(request: pytest.FixtureRequest) -> Iterator[int]:
    """The process's umask in this test."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    """Of everything below, and of the folder itself, without the kind of file."""
    return {str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode) for path in [folder, *folder.rglob("*")]}


@pytest.mark.usefixtures("mask")
def test_what_is_made_is_for_the_owner_alone_whatever_the_umask(tmp_path: Path) -> None:
    folder = tmp_path / "all" / "runs" / "run"
    checkpoints = Checkpoints(open_store(folder.as_uri()), fence=1, keep=2)
    checkpoints.claim()
    seen: dict[str, int] = {}

    def model(stream: PartStream) -> None:
        stream.write(CONTENT)
        seen.update(modes(tmp_path / "all"))  # of what is being written

    checkpoints.write(1, write(checkpoints, 1).manifest.time, {"model.pt": model})
    for path, mode in {**seen, **modes(tmp_path / "all")}.items():
        assert mode == (0o700 if (tmp_path / "all" / path).is_dir() or ".draft" in Path(path).name else 0o600), path
    assert any(".draft" in path for path in seen)
    assert newest(checkpoints)[0] == 1


@pytest.mark.usefixtures("mask")
def test_below_a_folder_of_a_group_it_is_the_group_s(tmp_path: Path) -> None:
    tmp_path.chmod(0o2770)
    folder = tmp_path / "run"
    checkpoints = Checkpoints(open_store(folder.as_uri()), fence=1, keep=2)
    write(checkpoints, 1)
    for path, mode in modes(folder).items():
        assert mode == (0o2770 if (folder / path).is_dir() else 0o660), path
    assert newest(checkpoints)[0] == 1


def test_folders_that_are_there_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs").chmod(0o755)
    (tmp_path / "runs" / "run").mkdir()
    (tmp_path / "runs" / "run").chmod(0o750)
    write(Checkpoints(open_store((tmp_path / "runs" / "run").as_uri()), fence=1, keep=2), 1)
    assert stat.S_IMODE((tmp_path / "runs").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "runs" / "run").stat().st_mode) == 0o750


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o703])
def test_a_folder_to_which_everybody_may_write_is_refused_with_the_remedy(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "run"
    checkpoints = Checkpoints(open_store(folder.as_uri()), fence=1, keep=2)
    write(checkpoints, 1)
    folder.chmod(mode)
    for attempt in (checkpoints.claim, lambda: newest(checkpoints), lambda: write(checkpoints, 2)):
        with pytest.raises(InvalidSettings, match=r"everybody may write to .*/run.*chmod -R o-w"):
            attempt()
    folder.chmod(0o700)
    assert newest(checkpoints)[0] == 1


@pytest.mark.parametrize("of", [".", "model.pt", "manifest.json"])
def test_a_checkpoint_to_which_everybody_may_write_is_passed_over(tmp_path: Path, of: str) -> None:
    checkpoints = Checkpoints(open_store((tmp_path / "run").as_uri()), fence=1, keep=2)
    write(checkpoints, 1)
    here = lay(tmp_path / "run", manifest(part()))
    assert here.name == NAME
    (here / of).chmod(0o702)
    step, (reason,) = newest(checkpoints)
    assert step == 1
    assert "everybody may write to its" in reason


def test_a_file_that_waits_under_a_name_of_ours_is_not_written_to(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    checkpoints = Checkpoints(open_store(folder.as_uri()), fence=1, keep=2)
    write(checkpoints, 1)
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (folder / ".fence.new").symlink_to(victim)  # the name that the new fence once had
    (folder / ".lock").unlink()
    (folder / ".lock").symlink_to(victim)
    with pytest.raises(Exception, match="Too many levels of symbolic links"):
        Checkpoints(open_store(folder.as_uri()), fence=2, keep=2).claim()
    (folder / ".lock").unlink()
    Checkpoints(open_store(folder.as_uri()), fence=2, keep=2).claim()
    assert victim.read_text() == "mine"
    assert (folder / ".fence").read_text() == "2"
