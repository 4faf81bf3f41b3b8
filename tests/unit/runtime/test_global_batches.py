"""Order, shares and weights as properties; and the batches that ranks really get, with the ranks simulated."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.protocol.rank_link import TotalSteps
from elastic_runtime.torch.global_batches import Batch, GlobalBatches
from elastic_runtime.torch.micro_batches import MicroBatches
from elastic_runtime.training.batches import position as batch_position
from elastic_runtime.training.batches.plan import BatchPlan, epoch_order
from tests.examples import costly

worlds = st.integers(1, 9)


@st.composite
def plans(draw: st.DrawFn) -> BatchPlan:
    samples = draw(st.integers(1, 60))
    drop_last = draw(st.booleans())
    size = draw(st.integers(1, samples if drop_last else 80))
    seed = draw(st.integers(0, 2**63 - 1))
    return BatchPlan(samples, size, seed, draw(st.integers(1, 3)), draw(st.booleans()), drop_last)


def global_batch(plan: BatchPlan, step: int, ranks: int) -> list[int]:
    return [int(index) for rank in range(ranks) for index in plan.share(step, rank, ranks).indices]


@given(plans(), worlds)
def test_an_epoch_has_every_sample_exactly_once(plan: BatchPlan, ranks: int) -> None:
    for epoch in range(plan.epochs):
        first = epoch * plan.steps_per_epoch + 1
        seen = [
            index for step in range(first, first + plan.steps_per_epoch) for index in global_batch(plan, step, ranks)
        ]
        assert len(set(seen)) == len(seen)
        dropped = plan.samples % plan.size if plan.drop_last else 0
        assert len(seen) == plan.samples - dropped


@given(plans(), worlds, worlds)
def test_a_step_has_the_same_samples_in_any_world(plan: BatchPlan, one: int, other: int) -> None:
    for step in range(1, plan.steps + 1):
        assert global_batch(plan, step, one) == global_batch(plan, step, other)


@given(plans(), worlds)
def test_shares_differ_by_one_sample_at_most(plan: BatchPlan, ranks: int) -> None:
    for step in range(1, plan.steps + 1):
        sizes = [len(plan.share(step, rank, ranks).indices) for rank in range(ranks)]
        assert max(sizes) - min(sizes) <= 1


@given(plans(), worlds)
def test_weights_average_to_one_and_are_zero_just_for_placeholders(plan: BatchPlan, ranks: int) -> None:
    for step in range(1, plan.steps + 1):
        shares = [plan.share(step, rank, ranks) for rank in range(ranks)]
        assert sum(share.weight for share in shares) / ranks == pytest.approx(1)
        assert all((share.weight == 0) == (len(share.indices) == 0) for share in shares)


@given(plans())
def test_one_step_in_each_epoch_ends_it(plan: BatchPlan) -> None:
    ends = [step for step in range(1, plan.steps + 1) if plan.share(step, 0, 1).ends_epoch]
    assert ends == [plan.steps_per_epoch * (epoch + 1) for epoch in range(plan.epochs)]


@costly()
@given(plans(), worlds)
def test_the_average_of_weighted_gradients_is_the_gradient_of_the_global_mean(plan: BatchPlan, ranks: int) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(plan.samples, 3, generator=generator, dtype=torch.float64)
    targets = torch.randn(plan.samples, 1, generator=generator, dtype=torch.float64)
    model = nn.Linear(3, 1).double()

    def gradient(indices: list[int], factor: float) -> torch.Tensor:
        model.zero_grad()
        loss = nn.functional.mse_loss(model(inputs[indices]), targets[indices])
        torch.autograd.backward(loss * factor)
        assert model.weight.grad is not None
        return model.weight.grad.clone()

    for step in range(1, plan.steps + 1):
        of_ranks = []
        for rank in range(ranks):
            share = plan.share(step, rank, ranks)
            of_ranks.append(gradient(share.indices.tolist() or [share.placeholder], share.weight))
        averaged = torch.stack(of_ranks).mean(0)
        torch.testing.assert_close(averaged, gradient(global_batch(plan, step, 1), 1.0))


def test_the_order_of_an_epoch_is_this_one_forever() -> None:
    # A checkpoint written today continues with these under the numpy of another day.
    assert epoch_order(8, 0, 0).tolist() == [0, 2, 1, 5, 4, 3, 6, 7]
    assert epoch_order(8, 0, 1).tolist() == [5, 3, 7, 2, 4, 1, 0, 6]
    assert epoch_order(8, 1, 0).tolist() == [3, 5, 2, 7, 0, 6, 1, 4]
    assert epoch_order(4, 5, 9, shuffle=False).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("settings_", "field"),
    [
        ({"samples": 0}, "samples"),
        ({"size": 0}, "size"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"epochs": 0}, "epochs"),
        ({"size": 11, "drop_last": True}, "size"),
    ],
)
def test_a_number_out_of_range_is_refused(settings_: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidSettings) as raised:
        BatchPlan(**{"samples": 10, "size": 2, "seed": 0, **settings_})
    assert raised.value.field == f"GlobalBatches.{field}"


# What ranks get


class Squares(Dataset[Any]):
    """No TensorDataset: fetched through a DataLoader."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([float(index)]), index**2


def tensors() -> TensorDataset:
    numbers = torch.arange(10)
    return TensorDataset(numbers[:, None].float(), numbers**2)


def batches(state: Any, rank: int = 0, ranks: int = 1, dataset: Any = None, **more: Any) -> GlobalBatches:
    dataset = tensors() if dataset is None else dataset
    world = SimpleNamespace(rank=rank, size=ranks)
    return GlobalBatches(dataset, **{"size": 4, "seed": 7, **more}, state=state, world=world)


def contents(batch: Batch) -> list[tuple[float, int]]:
    inputs, labels = batch.data
    return list(zip(inputs[:, 0].tolist(), labels.tolist(), strict=True))


@pytest.mark.parametrize("loader", [{}, {"num_workers": 2}])
@pytest.mark.parametrize("dataset", [tensors(), Squares()], ids=["tensors", "items"])
def test_a_batch_holds_the_samples_it_names(dataset: Any, loader: dict[str, Any]) -> None:
    for rank in (0, 1):
        got = list(batches(SimpleNamespace(step=0), rank, 2, dataset, epochs=2, **loader))
        assert [batch.step for batch in got] == [1, 2, 3, 4, 5, 6]
        assert [batch.epoch for batch in got] == [0, 0, 0, 1, 1, 1]
        assert [batch.ends_epoch for batch in got] == [False, False, True] * 2
        for batch in got:
            assert contents(batch) == [(float(index), int(index) ** 2) for index in batch.indices]


@pytest.mark.parametrize("dataset", [tensors(), Squares()], ids=["tensors", "items"])
def test_a_rank_without_a_sample_gets_a_placeholder_that_counts_nothing(dataset: Any) -> None:
    got = list(batches(SimpleNamespace(step=0), 0, 6, dataset, size=4))
    assert [batch.indices.tolist() for batch in got][:2] == [[], []]
    model = nn.Linear(1, 1)
    for batch in got[:2]:
        assert batch.weight == 0
        inputs, labels = batch.data
        loss = nn.functional.mse_loss(model(inputs)[:, 0], labels.float())
        torch.autograd.backward(loss * batch.weight)
    assert model.weight.grad is not None
    assert model.weight.grad.item() == 0


def test_the_position_is_in_the_state_before_the_batch_is_out() -> None:
    state = SimpleNamespace(step=0)
    for batch in batches(state):
        assert state.step == batch.step


@pytest.mark.parametrize(("rank", "position", "told"), [(0, "step", [6]), (1, "step", []), (0, "other", [])])
def test_rank_0_tells_the_steps_of_all_epochs_if_they_are_the_runs(
    monkeypatch: pytest.MonkeyPatch, rank: int, position: str, told: list[int]
) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(batch_position, "shared_link", lambda: SimpleNamespace(send=sent.append))
    state = SimpleNamespace(step=0, other=0)
    mine = batches(state, rank, 2, epochs=2, position=position)
    for _ in range(2):
        list(mine.shares())
    assert [each.steps for each in sent if isinstance(each, TotalSteps)] == told


def test_a_new_iteration_goes_on_in_the_new_world_where_the_state_stands() -> None:
    state = SimpleNamespace(step=0)
    trained: list[int] = []

    def train(ranks: int, until: int) -> None:
        taken = SimpleNamespace(step=state.step)
        for rank in range(ranks):
            mine = SimpleNamespace(step=state.step)
            for batch in batches(mine, rank, ranks, epochs=2):
                trained.extend(batch.indices.tolist())
                if batch.step == until:
                    break
            taken = mine
        state.step = taken.step

    for ranks, until in ((2, 2), (3, 3), (1, 4), (3, 6)):
        train(ranks, until)
    assert sorted(trained) == sorted([*range(10), *range(10)])
    assert list(batches(state, epochs=2)) == []


@pytest.mark.parametrize("loader", [{}, {"num_workers": 2}])
def test_an_iteration_goes_on_where_the_world_changes_in_its_midst(loader: dict[str, Any]) -> None:
    world = SimpleNamespace(rank=0, size=2)
    state = SimpleNamespace(step=0)
    plan = BatchPlan(10, 4, 7, 2)
    data = Squares() if loader else tensors()
    iterated = GlobalBatches(data, size=4, seed=7, state=state, epochs=2, world=world, **loader)
    seen: list[tuple[int, list[int]]] = []
    for batch in iterated:
        share = plan.share(batch.step, world.rank, world.size)
        assert (batch.indices.tolist(), batch.weight) == (share.indices.tolist(), share.weight)
        assert contents(batch)
        seen.append((batch.step, batch.indices.tolist()))
        if batch.step in (2, 5):
            world.rank, world.size = {2: (2, 3), 5: (0, 1)}[batch.step]
    assert [step for step, _ in seen] == list(range(1, 7))


def test_a_world_that_changes_after_the_last_batch_changes_nothing() -> None:
    world = SimpleNamespace(rank=0, size=2)
    iterated = batches(SimpleNamespace(step=0), size=20)
    iterated._world = world
    for _ in iterated:
        world.size = 3
    assert iterated.step == len(iterated)


def test_going_back_gives_the_same_batch_again() -> None:
    state = SimpleNamespace(step=0)
    everything = batches(state)
    first, second = (batch for batch, _ in zip(everything, range(2), strict=False))
    state.step = 1  # restore() after a failed step
    again = next(iter(everything))
    assert again.step == second.step != first.step
    assert np.array_equal(again.indices, second.indices)


def test_loading_leaves_torchs_random_numbers_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    list(batches(SimpleNamespace(step=0), dataset=Squares()))
    assert torch.rand(1) == expected


class Augmented(Squares):
    """Each sample with a random number, as an augmentation draws it; always the same samples."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.rand(1), index


def drawn(step: int, rank: int, kind: type[Any] = GlobalBatches, **more: Any) -> list[float]:
    """Random numbers of the first two samples that a rank of two loads after this step, in workers of the loader."""
    world, state = SimpleNamespace(rank=rank, size=2), SimpleNamespace(step=step)
    options = {"size": 4, "seed": 7, "epochs": 2, "num_workers": 1, **more}
    steps = iter(kind(Augmented(), **options, state=state, world=world))
    first = next(steps)
    batch = first if kind is GlobalBatches else next(iter(first))
    return [float(each) for each in batch.data[0]]


@pytest.mark.parametrize("kind", [{}, {"kind": MicroBatches, "size": 2, "count": 2}], ids=["global", "micro"])
def test_workers_of_the_loader_draw_other_numbers_on_each_rank_and_after_each_resumption(kind: dict[str, Any]) -> None:
    seen = [drawn(step, rank, **kind) for step in (0, 3) for rank in (0, 1)]
    assert len({number for numbers in seen for number in numbers}) == 8, "all different"
    assert seen == [drawn(step, rank, **kind) for step in (0, 3) for rank in (0, 1)], "and the same in each try"
    assert drawn(0, 0, seed=8, **kind) != seen[0]


def test_workers_of_the_loader_end_with_the_iteration() -> None:
    import multiprocessing

    iteration = iter(batches(SimpleNamespace(step=0), dataset=Squares(), num_workers=1))
    next(iteration)
    assert len(multiprocessing.active_children()) == 1
    del iteration
    assert multiprocessing.active_children() == []


def test_another_attribute_can_hold_the_position() -> None:
    state = SimpleNamespace(step=0, warmup_step=2)
    assert [batch.step for batch in batches(state, position="warmup_step")] == [3]
    assert (state.step, state.warmup_step) == (0, 3)


def test_its_length_is_that_of_the_training() -> None:
    assert len(batches(SimpleNamespace(step=2), epochs=2)) == 6
    assert len(list(batches(SimpleNamespace(step=2), epochs=2))) == 4


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"state": SimpleNamespace()}, "attribute 'step' is None"),
        ({"state": SimpleNamespace(step=1.5)}, "attribute 'step' is 1.5"),
        ({"dataset": iter([1])}, "has no length"),
        ({"batch_sampler": []}, "GlobalBatches sets it itself"),
    ],
)
def test_what_cannot_work_is_refused(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidSettings, match=problem):
        batches(**{"state": SimpleNamespace(step=0), **arguments})
