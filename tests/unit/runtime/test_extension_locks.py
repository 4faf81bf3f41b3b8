"""Locks of torch's compiled extensions, in processes that may be killed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch.utils.file_baton import FileBaton

from elastic_runtime.engines.torchrun import extension_locks
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


def test_of_two_that_find_it_at_once_one_takes_it_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one looks while the first one has not taken it over yet, and would take away the first one's."""
    (tmp_path / "lock").touch()
    batons = [FileBaton(str(tmp_path / "lock")) for _ in range(2)]
    looking, acquired = threading.Event(), []
    is_held = extension_locks._is_held

    def slowly_held(path: Path) -> bool:
        held = is_held(path)
        if looking.is_set():
            threads[0].join(60)  # The first one is done before the second one acts.
        else:
            looking.set()
            threads[1].start()
            threads[1].join(0.5)  # The second one looks, if it may.
        return held

    def take(baton: FileBaton) -> None:
        if baton.try_acquire():
            acquired.append(baton)

    monkeypatch.setattr(extension_locks, "_is_held", slowly_held)
    threads = [threading.Thread(target=take, args=[baton]) for baton in batons]
    threads[0].start()
    for thread in threads:
        thread.join(60)
    assert len(acquired) == 1
    acquired[0].release()
