"""Micro-batches that stay whole: the same samples and the same update at any world size."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.torch import MicroBatches
from elastic_runtime.training.batches.plan import BatchPlan, idle


class Optimizer:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.passes: list[int] = []

    def set_backward_passes_per_step(self, passes: int) -> None:
        self.passes.append(passes)


def batches(rank: int = 0, size: int = 1, step: int = 0, **options: Any) -> MicroBatches:
    world = SimpleNamespace(rank=rank, size=size)
    data = TensorDataset(torch.arange(22))
    return MicroBatches(data, 3, 4, 5, SimpleNamespace(step=step), world=world, **options)


def test_steps_go_on_with_other_shares_where_the_world_changes_in_their_midst() -> None:
    optimizer, plan = Optimizer(), BatchPlan(22, 12, 5)
    steps = batches(size=2, optimizer=optimizer)
    seen = []
    for step in steps:
        place = steps.world
        wanted = [share.indices.tolist() for share in plan.micro_shares(step.step, place.rank, place.size, 3)]
        assert [batch.indices.tolist() for batch in step] == wanted
        seen.append(len(wanted))
        steps._world = SimpleNamespace(rank=1, size=4)
    assert optimizer.passes == seen == [2, 1]


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 9), st.integers(1, 12), st.integers(0, 9))
def test_every_world_has_the_same_micro_batches_and_weights_them_alike(
    samples: int, size: int, count: int, ranks: int, seed: int
) -> None:
    plan = BatchPlan(samples, size * count, seed)
    for step in range(1, plan.steps + 1):
        alone = {tuple(share.indices): share.weight for share in plan.micro_shares(step, 0, 1, size)}
        seen: dict[tuple[int, ...], float] = {}
        counts = []
        for rank in range(ranks):
            shares = plan.micro_shares(step, rank, ranks, size)
            own = [share for share in shares if len(share.indices)]
            assert own or [share.weight for share in shares] == [0.0]
            counts.append(len(own))
            seen |= {tuple(share.indices): share.weight / ranks for share in own}
        assert seen == pytest.approx(alone)
        assert max(counts) - min(counts) <= 1
        assert sum(seen.values()) == pytest.approx(1.0)
        whole = BatchPlan(samples, size * count, seed, piece=size)
        for rank in range(ranks):
            shares = plan.micro_shares(step, rank, ranks, size)
            together = whole.share(step, rank, ranks)
            assert together.indices.tolist() == [index for share in shares for index in share.indices]
            assert together.weight == pytest.approx(sum(share.weight for share in shares))


@pytest.mark.parametrize(
    ("count", "ranks", "part"), [(8, 1, 0.0), (8, 4, 0.0), (8, 3, 1 / 9), (8, 5, 0.2), (2, 4, 0.5)]
)
def test_what_a_size_that_does_not_divide_them_costs(count: int, ranks: int, part: float) -> None:
    assert idle(count, ranks) == pytest.approx(part)


def test_a_step_is_gone_over_in_order_and_the_optimizer_counts_its_passes() -> None:
    optimizer = Optimizer()
    made = batches(rank=1, size=3, optimizer=optimizer)
    seen = [(step.step, step.ends_epoch, [batch.data[0].tolist() for batch in step]) for step in made]
    whole = batches()
    [first, second] = [[batch.data[0].tolist() for batch in step] for step in whole]
    assert (len(first), len(second), [len(each) for each in second]) == (4, 4, [3, 3, 3, 1])
    assert seen == [(1, False, first[1:2]), (2, True, second[1:2])]
    assert optimizer.passes == [1, 1]
    assert made.idle == pytest.approx(1 / 3)
    assert len(whole) == 2


def test_a_rank_without_one_stands_in_with_no_weight() -> None:
    for step in batches(rank=0, size=5):
        [batch] = step
        assert (batch.weight, len(batch.indices), len(batch.data[0])) == (0.0, 0, 2)


def test_a_step_that_was_broken_off_leaves_the_next_ones_as_they_are() -> None:
    wanted = [[batch.data[0].tolist() for batch in step] for step in batches()]
    made = batches()
    for step in made:
        if step.step == 1:
            next(iter(step))
            continue
        assert [batch.data[0].tolist() for batch in step] == wanted[1]
    again = batches(step=1, num_workers=0)
    assert [[batch.data[0].tolist() for batch in step] for step in again] == wanted[1:]


@pytest.mark.parametrize(
    ("changed", "problem"),
    [({"size": 0}, "size"), ({"count": True}, "count"), ({"optimizer": torch.optim.SGD([torch.zeros(1)])}, "SGD")],
)
def test_refuses_what_cannot_work(changed: dict[str, Any], problem: str) -> None:
    arguments = {"size": 3, "count": 4, "seed": 5, **changed}
    with pytest.raises(InvalidSettings, match=problem):
        MicroBatches(TensorDataset(torch.arange(22)), state=SimpleNamespace(step=0), **arguments)
