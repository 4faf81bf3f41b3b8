"""What a rank of torch.distributed takes for the loss of another."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from torch.distributed import DistBackendError

from elastic_runtime.engines.torch import rank as ranks
from elastic_runtime.engines.torch.channel import Channel, StoreTimeout, WorldLost
from elastic_runtime.engines.torch.rank import Rank
from elastic_runtime.protocol.rank_link import RankLink

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


def in_a_world_of_two(rank: Rank, monkeypatch: pytest.MonkeyPatch, *, has_nccl: bool, is_broken: bool) -> None:
    monkeypatch.setattr(ranks.dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(ranks, "complete_collectives", lambda: has_nccl)
    monkeypatch.setattr(rank, "_channel", SimpleNamespace(is_broken=is_broken))
