"""A script's waits for Gloo's collectives look whether the world is broken; those for one peer's message do not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch
from torch._C._distributed_c10d import HashStore, ProcessGroupGloo, Work

from elastic_runtime.engines.torch.sending import Stuck, watch_waits

Groups = dict[int, ProcessGroupGloo]


@pytest.fixture
def groups() -> Iterator[Groups]:
    """Of two ranks, both here."""
    store, found = HashStore(), dict[int, ProcessGroupGloo]()

    def connect(rank: int) -> None:
        found[rank] = ProcessGroupGloo(store, rank, 2, timedelta(seconds=30))

    threads = [threading.Thread(target=connect, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    yield found
    found.clear()


@pytest.fixture
def is_broken(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    broken = threading.Event()
    monkeypatch.setattr(Work, "wait", Work.wait)  # Put back at the end.
    watch_waits(broken.is_set)
    return broken


def test_one_of_a_broken_world_is_left(groups: Groups, is_broken: threading.Event) -> None:
    ones = torch.ones(3)
    work = groups[0].allreduce([ones])
    is_broken.set()
    with pytest.raises(Stuck):
        work.wait()
    assert groups[1].allreduce([torch.ones(3)]).wait()
    is_broken.clear()
    assert work.wait()
    assert ones.tolist() == [2.0, 2.0, 2.0]


def test_a_message_of_one_peer_is_waited_for(groups: Groups, is_broken: threading.Event) -> None:
    received = torch.zeros(3)
    work = groups[0].recv([received], 1, 0)
    is_broken.set()
    later = threading.Timer(1.2, lambda: groups[1].send([torch.ones(3)], 0, 0).wait())
    later.start()
    assert work.wait()
    later.join()
    assert received.tolist() == [1.0, 1.0, 1.0]


def test_a_wait_with_a_time_of_its_own_is_as_it_was(groups: Groups, is_broken: threading.Event) -> None:
    work = groups[0].allreduce([torch.ones(3)])
    is_broken.set()
    with pytest.raises(RuntimeError, match="timed out"):
        work.wait(timedelta(milliseconds=10))
    assert groups[1].allreduce([torch.ones(3)]).wait(timedelta(seconds=30))
    assert work.wait(timedelta(seconds=30))
