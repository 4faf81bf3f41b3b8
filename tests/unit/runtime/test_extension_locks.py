"""Locks of torch's compiled extensions, in processes that may be killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from torch.utils.file_baton import FileBaton

from elastic_runtime.engines.torchrun.extension_locks import take_over_stale_locks


@pytest.fixture(autouse=True)
def taking_over() -> Iterator[None]:
    original = FileBaton.try_acquire
    take_over_stale_locks.__wrapped__()
    yield
    FileBaton.try_acquire = original


def test_one_that_a_killed_process_has_left_is_taken_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "lock").touch()
    baton = FileBaton(str(tmp_path / "lock"))
    assert baton.try_acquire()
    assert "is of a process that is gone" in caplog.text
    baton.release()
    assert not (tmp_path / "lock").exists()


def test_one_that_somebody_holds_is_waited_for(tmp_path: Path) -> None:
    holder, other = (FileBaton(str(tmp_path / "lock")) for _ in range(2))
    assert holder.try_acquire()
    assert not other.try_acquire()
    holder.release()
    assert other.try_acquire()
    other.release()


def test_one_of_a_process_that_takes_none_over_is_waited_for(tmp_path: Path) -> None:
    """It has the file open, and no more."""
    with (tmp_path / "lock").open("x"):
        assert not FileBaton(str(tmp_path / "lock")).try_acquire()
