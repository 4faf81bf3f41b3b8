"""The helpers for scripts in a world that is not Horovod's: threads, each of them a rank."""

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
from elastic_runtime.training.state.verification import Verify
from elastic_runtime.world import WORLD, current_world

T = TypeVar("T")


class Another(Exception):
    """World, please."""


class Threads:
    """Implements World for threads."""

    connected, name = True, "a thread"

    def __init__(self, size: int = 2) -> None:
        self.size = size
        self._me = threading.local()
        self._gate = threading.Barrier(size)
        self._given: dict[int, Any] = {}

    @property
    def rank(self) -> int:
        return int(self._me.rank)

    def gather(self, value: Any) -> list[Any]:
        self._given[self.rank] = value
        self._gate.wait()
        values = [self._given[rank] for rank in range(self.size)]
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

        with ThreadPoolExecutor(self.size) as pool:
            return list(pool.map(as_rank, range(self.size)))


class Giving(Threads):
    """Implements GivingWorld: the first two of three have the same state."""

    alike = 2

    def __init__(self) -> None:
        super().__init__(3)
        self.given: list[int] = []
        """Bytes that the third was given by the first, which is its giver."""

    def give(self, tensors: Sequence[torch.Tensor]) -> None:
        everybody_s = self.gather([tensor.clone() for tensor in tensors])
        if self.rank >= self.alike:
            self.given += [tensor.nbytes for tensor in tensors]
            for tensor, theirs in zip(tensors, everybody_s[0], strict=True):
                tensor.copy_(theirs)


THREADS = Threads()
GIVING = Giving()


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


def grown(rank: int, *, verify: Verify = "commits") -> DurableState:
    """Ranks 0 and 1 have made the same step, with running statistics of their own; rank 2 is new."""
    torch.nn.init.ones_((model := torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)))[0].weight)
    torch.nn.init.zeros_(model[0].bias)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    if rank < 2:
        model(torch.eye(3)).square().sum().backward()
        optimizer.step()
        model[1].running_mean.fill_(rank)
    return DurableState(model, optimizer, verify=verify, step=2 if rank < 2 else 0)


def test_who_has_the_state_already_sends_it_to_a_newcomer_and_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WORLD, f"{__name__}:GIVING")
    current_world.cache_clear()

    def sync(rank: int) -> tuple[DurableState, Any]:
        before = dict((state := grown(rank)).optimizer.state)
        state.sync()
        return state, before

    (first, _), (second, before), (newcomer, _) = GIVING.on_each(sync)
    weights = 3 * 3 + 3 + 3 + 3
    assert sum(GIVING.given) == 4 * 3 * weights + 4 * 4, "parameters, two moments of each, and four counts of steps"
    for state in (second, newcomer):
        assert state.step == 2
        assert torch.equal(state.model[0].weight, first.model[0].weight)
        assert torch.equal(state.model[1].running_mean, first.model[1].running_mean), "each rank's own until now"
    assert len(newcomer.optimizer.state) == len(before) == 4
    for parameter, of in before.items():
        assert second.optimizer.state[parameter]["exp_avg"] is of["exp_avg"], "it was not loaded"


def test_where_ranks_may_differ_all_take_the_first_one_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WORLD, f"{__name__}:GIVING")
    current_world.cache_clear()

    def sync(rank: int) -> DurableState:
        state = grown(rank, verify="syncs")
        if rank == 1:
            state.model[0].weight.data += 1e-7
        state.sync()
        return state

    first, second, _ = GIVING.on_each(sync)
    assert torch.equal(second.model[0].weight, first.model[0].weight)


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
