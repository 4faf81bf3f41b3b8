"""What a rank of torch.distributed takes for the loss of another."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace

import pytest
from torch.distributed import Backend, DistBackendError, distributed_c10d
from torch.distributed.distributed_c10d import _get_default_timeout

from elastic_runtime.engines.torch import own_group
from elastic_runtime.engines.torch import rank as ranks
from elastic_runtime.engines.torch.channel import Channel, StoreTimeout, WorldLost
from elastic_runtime.engines.torch.messages import EnterWorld
from elastic_runtime.engines.torch.rank import Rank, WorldChanges
from elastic_runtime.protocol.rank_link import RankLink
from elastic_runtime.run.waits import ANSWER, AT_WORK, LEAST_STANDSTILL, LONGEST_BUSY

WATCHED = own_group.WATCHED_TIMEOUT
OF_PEERS = (
    DistBackendError("NCCL"),
    RuntimeError("[gloo] Connection closed by peer"),
    WorldLost("a rank is lost"),
    StoreTimeout("the store has not answered within 30 s"),
)


@pytest.fixture
def rank() -> Iterator[Rank]:
    ours, theirs = socket.socketpair()
    yield (rank := Rank(RankLink(ours)))
    theirs.close()
    for thread in threading.enumerate():
        if thread.name == "rank-link":  # It hears that the agent is gone, and has the world's sockets cut until told.
            thread.join()
    rank._cutting.end()
    assert "broken world" not in [thread.name for thread in threading.enumerate()]
    ours.close()


@pytest.mark.parametrize("error", OF_PEERS, ids=repr)
def test_errors_of_connections_are_losses(rank: Rank, error: Exception) -> None:
    assert rank.is_loss(error)


def test_errors_of_the_script_are_not(rank: Rank) -> None:
    assert not rank.is_loss(ValueError("no label for sample 3"))
    assert not rank.is_loss(TimeoutError("the data server has not answered"))
    assert not rank.is_loss(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def test_a_world_that_breaks_again_and_again_fails_by_the_error_that_breaks_it(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Channel, "breaks_again_and_again", True)
    assert not rank.is_loss(RuntimeError("c10d: the group has no such rank"))
    assert rank.is_loss(WorldLost("a rank is lost"))


@pytest.mark.parametrize(("has_nccl", "is_broken"), [(True, False), (False, True)])
def test_what_collectives_have_brought_is_taken(
    rank: Rank, monkeypatch: pytest.MonkeyPatch, has_nccl: bool, is_broken: bool
) -> None:
    in_a_world_of_two(rank, monkeypatch, has_nccl=has_nccl, is_broken=is_broken)
    rank.settle()


def test_what_nccl_has_brought_in_a_broken_world_is_not(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    in_a_world_of_two(rank, monkeypatch, has_nccl=True, is_broken=True)
    with pytest.raises(WorldLost):
        rank.settle()


def test_collectives_outlast_the_watchdog_and_whatever_a_rank_is_busy_with() -> None:
    limits = LONGEST_BUSY + AT_WORK * LEAST_STANDSTILL + ANSWER
    assert own_group.WATCHED_TIMEOUT.total_seconds() > limits > own_group.COLLECTIVE_TIMEOUT.total_seconds()


def test_a_rank_with_a_state_waits_for_longer_in_all_groups(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    """From before it loads its state on: the others wait then."""
    set_: list[timedelta] = []
    made = SimpleNamespace(_set_default_timeout=set_.append)
    monkeypatch.setattr(ranks, "_set_pg_timeout", set_.append)
    monkeypatch.setattr(rank, "enter", lambda: None)
    for name in ("default_pg_timeout", "default_pg_nccl_timeout"):
        monkeypatch.setattr(distributed_c10d, name, timedelta(minutes=10))
    monkeypatch.setattr(own_group._present, "timeout", own_group.COLLECTIVE_TIMEOUT)
    monkeypatch.setattr(own_group._present, "group", made)
    monkeypatch.setattr(ranks, "through_worlds", lambda *_: own_group.timeout())
    assert rank.run(SimpleNamespace(on_hosts_updated=lambda _: None), lambda: None, in_place=False) == WATCHED
    assert set_ == [WATCHED, WATCHED]
    assert _get_default_timeout(Backend("gloo")) == _get_default_timeout(Backend("nccl")) == WATCHED


def in_a_world_of_two(rank: Rank, monkeypatch: pytest.MonkeyPatch, *, has_nccl: bool, is_broken: bool) -> None:
    monkeypatch.setattr(ranks.dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(ranks, "complete_collectives", lambda: has_nccl)
    monkeypatch.setattr(rank, "_channel", SimpleNamespace(is_broken=is_broken))


@pytest.mark.parametrize(("replicated", "alike", "same"), [(True, 2, True), (False, 2, False), (True, 1, False)])
def test_a_world_needs_no_sync_where_all_have_left_at_one_commit_with_a_state_that_is_replicated(
    rank: Rank, monkeypatch: pytest.MonkeyPatch, replicated: bool, alike: int, same: bool
) -> None:
    monkeypatch.setattr(Channel, "next_world", lambda *_, **__: EnterWorld(2, 0, 2, alike))
    connected: list[bool] = []
    monkeypatch.setattr(rank, "_connect", lambda _channel, _place, has_same: connected.append(has_same))
    monkeypatch.setattr(rank, "_state", SimpleNamespace(is_replicated=replicated))
    assert rank._channel is not None
    assert rank._into_next(rank._channel) is same
    assert connected == [same]


def test_a_script_that_catches_each_exception_of_a_step_leaves_its_world_all_the_same(rank: Rank) -> None:
    def step() -> None:
        with contextlib.suppress(Exception):
            rank.change()

    with pytest.raises(WorldChanges):
        step()
