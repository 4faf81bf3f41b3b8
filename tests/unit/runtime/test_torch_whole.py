"""Torn checkpoints of scripts that are restarted, as real files that end at any length."""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.torch import whole
from elastic_runtime.torch.restarts import newest_checkpoint, write_checkpoint

STATE = {"weight": torch.arange(50.0), "step": 3}


def as_file(path: Path) -> None:
    torch.save(STATE, path)


def as_folder(path: Path) -> None:
    (path / "optimizer").mkdir(parents=True)
    torch.save(STATE, path / "optimizer" / "rank-0.pt")
    (path / "model.distcp").write_bytes(bytes(300))
    (path / "empty").touch()


KINDS = pytest.mark.parametrize(("write", "suffix"), [(as_file, ".ckpt"), (as_folder, "")], ids=["file", "folder"])
Write = Callable[[Path], None]


def files_of(path: Path) -> list[Path]:
    return sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]


def cut(path: Path, data: st.DataObject) -> None:
    """To any length but its own."""
    size = path.stat().st_size
    os.truncate(path, data.draw(st.integers(0, 2 * size).filter(lambda length: length != size)))


@KINDS
@given(data=st.data())
def test_one_that_is_torn_is_passed_over_whatever_its_length(write: Write, suffix: str, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        before = write_checkpoint(folder, 5, write, suffix)
        torn = write_checkpoint(folder, 10, write, suffix)
        assert newest_checkpoint(folder) == (torn, 10)
        file = data.draw(st.sampled_from(files_of(torn)))
        if file.stat().st_size and data.draw(st.booleans()):
            cut(file, data)
        else:
            file.unlink()
        if torn.exists():
            assert whole.difference(torn)
        assert newest_checkpoint(folder) == (before, 5)
        # It does not take the place of a whole one, and goes.
        write_checkpoint(folder, 8, write, suffix)
        assert {path.name for path in folder.iterdir()} == {before.name, f"step-000000008{suffix}", whole.SIZES}


@KINDS
def test_a_warning_names_the_torn_one_and_the_one_that_is_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, write: Write, suffix: str
) -> None:
    write_checkpoint(tmp_path, 5, write, suffix)
    torn = write_checkpoint(tmp_path, 10, write, suffix)
    file = files_of(torn)[-1]
    size = file.stat().st_size
    os.truncate(file, 7)
    with caplog.at_level(logging.WARNING):
        newest_checkpoint(tmp_path)
        monkeypatch.setenv("RANK", "1")
        newest_checkpoint(tmp_path)
    assert caplog.messages == [
        f"not whole: {torn} ({file.name} has 7 bytes, not {size}). Step-000000005{suffix} is taken instead"
    ]


def test_where_none_is_whole_the_warning_says_that_the_training_starts_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for path in [write_checkpoint(tmp_path, step, as_file, ".ckpt") for step in (5, 10)]:
        os.truncate(path, 7)
    assert newest_checkpoint(tmp_path) is None
    (message,) = caplog.messages
    assert "step-000000010.ckpt" in message
    assert "step-000000005.ckpt" in message
    assert message.endswith("There is no other, so the training starts over")


@KINDS
def test_lost_sizes_cost_no_checkpoint_and_what_is_added_later_is_no_damage(
    tmp_path: Path, write: Write, suffix: str
) -> None:
    newest = write_checkpoint(tmp_path, 10, write, suffix)
    if newest.is_dir():
        (newest / "universal").touch()
    assert newest_checkpoint(tmp_path) == (newest, 10)
    for sizes in ("[]", '{"step-0', None):
        (tmp_path / whole.SIZES).unlink(missing_ok=True)
        if sizes is not None:
            (tmp_path / whole.SIZES).write_text(sizes)
        assert newest_checkpoint(tmp_path) == (newest, 10)


@KINDS
@pytest.mark.parametrize("step", [0, 10])
def test_the_same_step_again_replaces_the_one_before(tmp_path: Path, write: Write, suffix: str, step: int) -> None:
    write_checkpoint(tmp_path, step, write, suffix)
    again = write_checkpoint(tmp_path, step, write, suffix)
    assert {path.name for path in tmp_path.iterdir()} == {again.name, whole.SIZES}
    assert newest_checkpoint(tmp_path) == (again, step)


@KINDS
def test_one_of_the_same_step_stays_until_the_new_one_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Write, suffix: str
) -> None:
    before = write_checkpoint(tmp_path, 10, write, suffix)
    part = tmp_path / before.name.replace("step", "part")
    expected = {part / file.relative_to(before) for file in files_of(before)}
    flushed: set[Path] = set()

    def fsync(handle: int) -> None:
        flushed.add(Path(f"/proc/self/fd/{handle}").readlink())
        if expected - flushed:
            assert newest_checkpoint(tmp_path) == (before, 10)

    monkeypatch.setattr(os, "fsync", fsync)
    write_checkpoint(tmp_path, 10, write, suffix)
    assert expected | {tmp_path} <= flushed


@pytest.mark.parametrize("error", [22, 95])
def test_a_file_system_without_fsync_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    def fsync(_handle: int) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "fsync", fsync)
    assert newest_checkpoint(write_checkpoint(tmp_path, 10, as_folder).parent)


def test_a_disk_that_fails_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = write_checkpoint(tmp_path, 5, as_folder)

    def fsync(_handle: int) -> None:
        raise OSError(5, os.strerror(5))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="Input/output"):
        write_checkpoint(tmp_path, 10, as_folder)
    assert newest_checkpoint(tmp_path) == (before, 5)


def safetensors(path: Path) -> None:
    header = json.dumps({"weight": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}, "__metadata__": {}})
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode() + bytes(16))


@pytest.mark.parametrize(("name", "make"), [("optimizer.pt", as_file), ("model.safetensors", safetensors)])
@given(data=st.data())
def test_a_file_that_ends_too_early_is_told_by_its_format(name: str, make: Write, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / name
        make(file)
        assert whole.damage(Path(folder)) is None
        os.truncate(file, data.draw(st.integers(0, file.stat().st_size - 1)))
        assert whole.damage(Path(folder)) == f"{name} ends too early"


def test_files_of_other_formats_are_none_of_its_business(tmp_path: Path) -> None:
    torch.save(STATE, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    (tmp_path / "vocabulary.txt").touch()
    (tmp_path / "table.bin").write_bytes(b"\x01\x02")
    assert whole.damage(tmp_path) is None
    shutil.rmtree(tmp_path)
    assert whole.damage(tmp_path) is None
