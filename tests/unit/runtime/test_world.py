"""The helpers for scripts in a world that is not Horovod's: two threads, each of them a rank."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
import torch

from elastic_runtime.torch import DurableState, GlobalBatches
from elastic_runtime.world import WORLD, current_world

T = TypeVar("T")


class Another(Exception):
    """World, please."""


class Threads:
    """Implements World for two threads."""

    connected, name, size = True, "a thread", 2

    def __init__(self) -> None:
        self._me = threading.local()
        self._gate = threading.Barrier(2)
        self._given: dict[int, Any] = {}

    @property
    def rank(self) -> int:
        return int(self._me.rank)

    def gather(self, value: Any) -> list[Any]:
        self._given[self.rank] = value
        self._gate.wait()
        values = [self._given[rank] for rank in range(2)]
        self._gate.wait()
        return values

    def prepare(self) -> None:
        pass

    def barrier(self) -> None:
        self._gate.wait()

    def agrees(self) -> bool:
        return True

    def maximum(self, numbers: Sequence[float]) -> list[float]:
        return [max(column) for column in zip(*self.gather(numbers), strict=True)]

    def broadcast(self, tensors: Sequence[torch.Tensor]) -> None:
        for tensor, first in zip(tensors, self.gather([tensor.clone() for tensor in tensors])[0], strict=True):
            tensor.copy_(first)

    def settle(self) -> None:
        pass

    def change(self) -> None:
        raise Another

    def handler(self, value: object) -> None:
        return None

    def on_each(self, act: Callable[[int], T]) -> list[T]:
        def as_rank(rank: int) -> T:
            self._me.rank = rank
            return act(rank)

        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(as_rank, range(2)))


THREADS = Threads()


@pytest.fixture(autouse=True)
def in_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(WORLD, f"{__name__}:THREADS")
    current_world.cache_clear()
    yield
    current_world.cache_clear()


def trained(rank: int) -> DurableState:
    """Rank 0 has the state, and the other is new."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 if rank else 0.2, weight_decay=0.5)
    if rank == 0:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    return DurableState(model=model, optimizer=optimizer, best=(1.5, "a") if rank == 0 else (), step=3 - rank)


def test_a_newcomer_takes_what_the_first_rank_has() -> None:
    def sync(rank: int) -> DurableState:
        state = trained(rank)
        state.sync()
        return state

    first, newcomer = THREADS.on_each(sync)
    assert torch.equal(first.model.weight, newcomer.model.weight)
    assert newcomer.optimizer.param_groups[0]["lr"] == 0.2
    assert (newcomer.step, newcomer.best) == (3, (1.5, "a"))
    assert newcomer.optimizer.state[newcomer.model.weight]["step"].item() == 1


def test_all_leave_at_the_same_commit_when_one_hears_of_changes() -> None:
    def commits(rank: int) -> list[bool]:
        state, raised = DurableState(step=0), []
        for told in (None, 5.0, None, 4.0):
            if told and rank == 1:
                state.on_hosts_updated(told)
            try:
                state.commit()
                raised.append(False)
            except Another:
                state.on_reset()
                raised.append(True)
        return raised

    assert THREADS.on_each(commits) == [[False, True, False, False]] * 2


def test_reset_callbacks_are_called_in_the_next_world() -> None:
    def reset(_rank: int) -> list[str]:
        state, called = DurableState(step=0), []
        state.register_reset_callbacks([lambda: called.append("called")])
        state.on_reset()
        return called

    assert THREADS.on_each(reset) == [["called"], ["called"]]


def test_each_rank_has_its_share() -> None:
    data = torch.utils.data.TensorDataset(torch.arange(6))

    def samples(_rank: int) -> list[int]:
        state = DurableState(step=0)
        return [int(index) for batch in GlobalBatches(data, 4, 0, state) for index in batch.indices]

    one, other = THREADS.on_each(samples)
    assert sorted(one + other) == list(range(6))


def test_horovod_is_not_even_imported() -> None:
    script = (
        "import sys, elastic_runtime.torch.durable, elastic_runtime.torch.global_batches,"
        "elastic_runtime.training.reporting, elastic_runtime.torch.world_scaling;"
        "print('horovod' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "False\n"


@pytest.mark.parametrize("first", ["world", "engines.horovod.rank"])
def test_a_cold_rank_is_prepared_whatever_it_imports_first(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WORLD, "elastic_runtime.engines.horovod.world:WORLD")
    script = (
        f"import elastic_runtime.{first}, elastic_runtime.world; elastic_runtime.world.current_world();"
        "import elastic_runtime.torch.durable, horovod.torch.elastic as elastic;"
        "from elastic_runtime.engines.horovod import rank; print(elastic.run is rank.run)"
    )
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "True\n"
