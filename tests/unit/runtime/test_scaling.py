"""Learning rates that follow the world."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.torch import DurableState, WorldScaling
from elastic_runtime.training.rates import Ramp, RateScaling, ScalingRule, factor, next_ramp


@dataclass
class World:
    """As it is told."""

    size: int
    rank: int = 0


def factors(scaling: WorldScaling, world: World, *sizes: int) -> list[float]:
    """Of a step in each of these worlds, from step 1."""
    found = []
    for step, size in enumerate(sizes, start=1):
        world.size = size
        found.append(scaling.factor(step))
    return found


@pytest.mark.parametrize(("rule", "wanted"), [("linear", [1, 2, 0.5]), ("sqrt", [1, math.sqrt(2), math.sqrt(0.5)])])
def test_the_rate_follows_the_batch(rule: str, wanted: list[float]) -> None:
    world = World(2)
    assert factors(WorldScaling(2, rule, world=world), world, 2, 4, 1) == pytest.approx(wanted)


def test_a_growth_is_warmed_up_to_by_equal_increments() -> None:
    world = World(2)
    scaling = WorldScaling(2, warmup=4, world=world)
    assert factors(scaling, world, 2, 2, 4, 4, 4, 4, 4) == pytest.approx([1, 1, 1.25, 1.5, 1.75, 2, 2])


def test_the_start_is_warmed_up_to_from_the_rate_as_it_was_chosen() -> None:
    world = World(6)
    assert factors(WorldScaling(2, warmup=4, world=world), world, 6, 6, 6, 6, 6) == pytest.approx([1.5, 2, 2.5, 3, 3])


def test_a_shrinkage_takes_effect_at_once() -> None:
    world = World(4)
    scaling = WorldScaling(4, warmup=10, world=world)
    assert factors(scaling, world, 4, 3, 3, 1) == pytest.approx([1, 0.75, 0.75, 0.25])


def test_a_resize_in_a_warm_up_goes_on_from_where_that_was() -> None:
    world = World(1)
    scaling = WorldScaling(1, warmup=4, world=world)
    assert factors(scaling, world, 1, 5, 5, 8) == pytest.approx([1, 2, 3, 3 + 5 / 4])
    assert factors(WorldScaling(1, warmup=4, world=world), world, 1, 5, 5, 2) == pytest.approx([1, 2, 3, 2])


@given(st.lists(st.integers(1, 8), min_size=1, max_size=60), st.sampled_from(ScalingRule), st.integers(0, 9))
def test_whatever_happens_the_rate_stays_between_those_of_the_worlds_seen(
    sizes: list[int], rule: ScalingRule, warmup: int
) -> None:
    world = World(1)
    scaling = RateScaling(2, rule, warmup)
    found = factors(WorldScaling(2, rule, warmup, world=world), world, *sizes)
    seen = [1.0, *map(scaling.target, sizes)]
    assert all(min(seen) - 1e-9 <= each <= max(seen) + 1e-9 for each in found)
    largest = max(1e-9, max(seen) - min(seen)) / max(1, warmup)
    assert all(later - earlier <= largest + 1e-9 for earlier, later in pairwise([1.0, *found]))
    settled = factors(WorldScaling(2, rule, warmup, world=world), world, *sizes, *[sizes[-1]] * (warmup + 1))
    assert settled[-1] == scaling.target(sizes[-1])


@given(st.lists(st.integers(1, 5), min_size=1, max_size=40), st.data())
def test_a_state_that_travels_leads_to_the_same_rates(sizes: list[int], data: st.DataObject) -> None:
    world = World(1)
    whole = factors(WorldScaling(2, warmup=5, world=world), world, *sizes)
    cut = data.draw(st.integers(0, len(sizes)))
    first, second = WorldScaling(2, warmup=5, world=world), WorldScaling(2, warmup=5, world=world)
    before = factors(first, world, *sizes[:cut])
    second.load_state_dict(first.state_dict())
    after = []
    for step in range(cut + 1, len(sizes) + 1):
        world.size = sizes[step - 1]
        after.append(second.factor(step))
    assert before + after == whole


def test_a_step_that_is_done_again_has_the_same_rate() -> None:
    world = World(1)
    scaling = WorldScaling(1, warmup=4, world=world)
    factors(scaling, world, 1, 3)
    committed, third = scaling.state_dict(), scaling.factor(3)
    world.size = 2
    scaling.factor(4)
    scaling.load_state_dict(committed)
    world.size = 3
    assert scaling.factor(3) == third


def test_only_the_step_itself_sees_the_multiplied_rates() -> None:
    weight = torch.nn.Parameter(torch.tensor([1.0]))
    optimizer = torch.optim.SGD([{"params": [weight], "lr": 0.1}])
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    scaling = WorldScaling(1, world=World(3))
    for step, rate in ((1, 0.1), (2, 0.05)):
        before = weight.item()
        weight.grad = torch.tensor([1.0])
        with scaling.applied(optimizer, step) as multiplier:
            assert multiplier == 3.0
            optimizer.step()
        scheduler.step()
        assert weight.item() == pytest.approx(before - 3 * rate)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.025)
    with pytest.raises(ZeroDivisionError), scaling.applied(optimizer, 3):
        raise ZeroDivisionError
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.025)


def test_it_goes_with_a_durable_state() -> None:
    world = World(1)
    scaling = WorldScaling(1, warmup=4, world=world)
    state = DurableState(scaling=scaling)
    factors(scaling, world, 1, 5)
    state.save()
    saved = scaling.state_dict()
    world.size = 2
    scaling.factor(9)
    state.restore()
    assert scaling.state_dict() == saved == {"ramp": {"size": 5, "begin": 2, "start": 1.0}}


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"base": 0}, "base"),
        ({"base": 1.5}, "base"),
        ({"base": 1, "rule": "cubic"}, "rule"),
        ({"base": 1, "warmup": -1}, "warmup"),
    ],
)
def test_what_cannot_work_is_refused(arguments: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidSettings) as caught:
        WorldScaling(**arguments)  # type: ignore[arg-type]  # what a user may write
    assert caught.value.field == f"WorldScaling.{field}"


def test_the_way_is_a_function_of_the_step_alone() -> None:
    scaling = RateScaling(2, ScalingRule.LINEAR, 4)
    ramp = next_ramp(scaling, Ramp(2, 1, 1.0), 11, 4)
    assert ramp == Ramp(4, 11, 1.0)
    assert [factor(scaling, ramp, step) for step in (10, 11, 12, 13, 14, 99)] == [1.0, 1.25, 1.5, 1.75, 2.0, 2.0]
