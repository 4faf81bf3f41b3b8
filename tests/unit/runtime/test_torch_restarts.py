"""Checkpoints of scripts that are restarted: which stay, by which name, and which is the newest. One rank alone."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.errors import InvalidSettings, StatesDiffer
from elastic_runtime.torch import restarts
from elastic_runtime.torch.restarts import (
    RestartRequest,
    SaveEvery,
    check_same_step,
    newest_checkpoint,
    write_checkpoint,
)
from elastic_runtime.torch.whole import SIZES


def write(path: Path) -> None:
    path.mkdir()
    (path / "model").write_text("whole")


def names(folder: Path) -> set[str]:
    """All but the sizes."""
    return {path.name for path in folder.iterdir()} - {SIZES}


def test_the_last_two_stay_and_the_last_is_the_newest(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert newest_checkpoint(folder) is None
    for step in (5, 10, 15):
        assert write_checkpoint(folder, step, write) == folder / f"step-{step:09d}"
    assert names(folder) == {"step-000000010", "step-000000015"}
    assert newest_checkpoint(folder) == (folder / "step-000000015", 15)


def test_what_was_left_half_written_goes_and_nothing_else_does(tmp_path: Path) -> None:
    for name in ("part-000000003", "part-000000010"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "half").touch()
    for name in ("part-000000007.ckpt", "part-one", "notes"):
        (tmp_path / name).touch()
    there: list[set[str]] = []

    def look_and_write(path: Path) -> None:
        there.append(names(tmp_path))
        write(path)

    final = write_checkpoint(tmp_path, 10, look_and_write)
    assert there == [{"part-one", "notes"}], "before any rank writes"
    assert names(tmp_path) == {"part-one", "notes", final.name}
    assert names(final) == {"model"}


def test_what_cannot_be_removed_costs_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = tmp_path / "part-000000003"
    left.mkdir()

    def rmtree(_path: Path) -> None:
        raise OSError("a rank of a lost machine writes there")

    monkeypatch.setattr(restarts.shutil, "rmtree", rmtree)
    write_checkpoint(tmp_path, 10, write)
    assert newest_checkpoint(tmp_path) == (tmp_path / "step-000000010", 10)


def test_one_that_fails_leaves_the_one_before(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 5, write)

    def fail(path: Path) -> None:
        path.touch()
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        write_checkpoint(tmp_path, 10, fail, ".ckpt")
    assert newest_checkpoint(tmp_path) == (tmp_path / "step-000000005", 5)
    write_checkpoint(tmp_path, 15, write)
    assert names(tmp_path) == {"step-000000005", "step-000000015"}


@given(st.integers(1, 9), st.integers(0, 50), st.lists(st.integers(0, 3), min_size=20))
def test_one_is_due_after_so_many_steps_however_many_come_at_once(every: int, first: int, paces: list[int]) -> None:
    saves, never = SaveEvery(every), SaveEvery(None)
    saves.is_at(first)
    step, saved = first, [first]
    for pace in paces:  # 0: batches whose gradients are gathered for one step
        step += pace
        assert not never.due(step)
        if saves.due(step):
            saves.is_at(step)
            saved.append(step)
    assert all(every <= later - earlier < every + 3 for earlier, later in pairwise(saved))
    assert step - saved[-1] < every


def test_less_than_one_step_between_them_is_refused() -> None:
    with pytest.raises(InvalidSettings, match="save_every"):
        SaveEvery(0)


@pytest.fixture
def sigterm() -> Iterator[None]:
    """Its handler is put back."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def framework(_number: int, _frame: object) -> None:
    """As a framework's own, which installs it once training begins."""


@pytest.mark.usefixtures("sigterm")
def test_a_handler_that_something_has_replaced_is_installed_again_and_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    request = RestartRequest("SIGTERM")
    for _ in range(2):
        signal.signal(signal.SIGTERM, framework)
        with caplog.at_level(logging.WARNING):
            assert not request.agreed()
    os.kill(os.getpid(), signal.SIGTERM)
    assert request.asked
    assert request.agreed()
    (told,) = caplog.messages
    assert told == (
        f"SIGTERM was handled by {__name__}.framework since training began: the request to restart handles it again"
    )


@pytest.mark.usefixtures("sigterm")
def test_two_requests_of_one_process_are_both_asked() -> None:
    requests = RestartRequest("SIGTERM"), RestartRequest("SIGTERM", every=2)
    os.kill(os.getpid(), signal.SIGTERM)
    assert all(request.asked for request in requests)
    assert [request.agreed() for request in requests] == [True, False]


@pytest.mark.usefixtures("sigterm")
def test_a_request_that_is_made_later_was_not_asked_by_an_earlier_signal() -> None:
    RestartRequest("SIGTERM")
    os.kill(os.getpid(), signal.SIGTERM)
    assert not RestartRequest("SIGTERM").asked


def begin_at(folder: Path, rank: int, told: Connection) -> None:
    dist.init_process_group("gloo", init_method=(folder / "store").as_uri(), rank=rank, world_size=2)
    check_same_step(8)
    try:
        check_same_step(8 * rank)
    except StatesDiffer as error:
        told.send(str(error))


def test_ranks_that_find_different_checkpoints_do_not_train(tmp_path: Path) -> None:
    """As where each machine has a folder of its own."""
    processes = multiprocessing.get_context("fork")
    links = [processes.Pipe() for _ in range(2)]
    ranks = [processes.Process(target=begin_at, args=(tmp_path, rank, link[1])) for rank, link in enumerate(links)]
    for rank in ranks:
        rank.start()
    for rank, link in zip(ranks, links, strict=True):
        assert link[0].poll(60), "the rank told of no difference"
        assert link[0].recv().startswith("the ranks begin at different steps: rank 0 at 0, rank 1 at 8. ")
        rank.join()


@pytest.mark.usefixtures("sigterm")
def test_ranks_of_horovod_agree_and_one_of_them_names_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Sequence[float]] = []
    met: list[None] = []

    def maximum(numbers: Sequence[float]) -> list[float]:
        asked.append(numbers)
        return [1.0]

    world = SimpleNamespace(connected=True, rank=1, size=2, maximum=maximum, barrier=lambda: met.append(None))
    monkeypatch.setattr(restarts, "current_world", lambda: world)
    assert RestartRequest().agreed()
    assert asked == [[False]], "another rank was asked"
    write_checkpoint(tmp_path, 7, lambda part: part.touch())
    assert len(met) == 3
    assert names(tmp_path) == {"part-000000007"}, "rank 0 gives it its name"
