"""Which collectives of torch.distributed a rank counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.algorithms.join import Join, Joinable, JoinHook, _JoinConfig
from torch.distributed.distributed_c10d import ProcessGroup
from torch.testing._internal.distributed.fake_pg import FakeStore

from elastic_runtime.engines.torch import counting
from elastic_runtime.protocol.rank_link import RankLink
from elastic_runtime.protocol.tallies import Tally
from elastic_runtime.script.standing import Ledger

ONES = torch.ones(8)


class Alone(Joinable):
    """Has nothing to do while it waits for others."""

    def __init__(self) -> None:
        super().__init__()
        self._join_config = _JoinConfig.construct_disabled_join_config()

    @property
    def join_device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def join_process_group(self) -> Any:
        return dist.group.WORLD

    def join_hook(self, **_kwargs: object) -> JoinHook:
        return JoinHook()


@pytest.fixture(params=[1])
def tally(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Callable[[], Tally]]:
    """What a rank tells, alone in its world or as if there were others; nothing of it is left."""
    ledger = Ledger(RankLink(None))
    monkeypatch.setattr(counting, "ledger", lambda: ledger)
    for name in (*counting._ALIKE, *counting._OTHERS, *counting._MESSAGES):
        if hasattr(ProcessGroup, name):
            monkeypatch.setattr(ProcessGroup, name, getattr(ProcessGroup, name))
    monkeypatch.setattr(Join, "__enter__", Join.__enter__)
    counting.watch_collectives.__wrapped__()
    if request.param == 1:
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    else:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=request.param)
    counting.connected()
    yield lambda: ledger.counts.tally(1, 1, ())
    dist.destroy_process_group()


def test_collectives_of_all_ranks_count_with_their_kinds(tally: Callable[[], Tally]) -> None:
    dist.all_reduce(ONES)
    dist.broadcast(ONES.int(), 0)
    dist.all_gather([ONES.clone()], ONES)
    dist.barrier()
    told = tally()
    assert told.collectives == 4
    assert told.kinds == {"all_reduce float32[8]": 1, "broadcast int32[8]": 1, "all_gather float32[8]": 1, "barrier": 1}


def test_checks_of_one_rank_do_not(tally: Callable[[], Tally]) -> None:
    before = tally()
    dist.monitored_barrier()
    assert tally() == before


def test_those_of_another_group_of_all_ranks_count_too_with_its_name(tally: Callable[[], Tally]) -> None:
    group = dist.new_group()
    dist.barrier()
    dist.all_reduce(ONES, group=group)
    told = tally()
    assert told.collectives == 2
    assert told.kinds == {"barrier": 1, f"all_reduce float32[8] in group {group.group_name}": 1}
    dist.destroy_process_group(group)


@pytest.mark.parametrize("tally", [3], indirect=True)
def test_those_of_some_ranks_do_not_count(tally: Callable[[], Tally]) -> None:
    some, every = dist.new_group([0, 2]), dist.new_group([0, 1, 2])
    dist.all_reduce(ONES, group=every)
    before = tally()
    assert before.marks == 1
    dist.all_reduce(ONES, group=some)
    assert tally() == before


def test_the_order_is_that_of_each_group(tally: Callable[[], Tally]) -> None:
    """Threads may use them at once."""
    first, second = dist.new_group(), dist.new_group()
    counts = counting.ledger().counts

    def order(*groups: Any) -> int | None:
        counts.connected()
        for group, size in groups:
            dist.all_reduce(torch.ones(size), group=group)
        return tally().order

    assert order((first, 1), (second, 1), (first, 2)) == order((second, 1), (first, 1), (first, 2))
    assert order((first, 1), (first, 2)) != order((first, 2), (first, 1))
    assert order((first, 1), (second, 2)) != order((first, 2), (second, 1))
    for group in (first, second):
        dist.destroy_process_group(group)


def test_a_world_with_join_is_not_compared(tally: Callable[[], Tally]) -> None:
    with Join([Alone()]):
        dist.all_reduce(ONES)
    assert tally() == Tally(1)


def test_a_group_that_is_gone_has_no_number(tally: Callable[[], Tally]) -> None:
    group = dist.distributed_c10d._world.default_pg
    dist.distributed_c10d._world.default_pg = None
    assert tally().collectives is None
    dist.distributed_c10d._world.default_pg = group
