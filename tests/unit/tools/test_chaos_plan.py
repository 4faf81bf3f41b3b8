"""What is done in a round of ``make chaos`` follows from its seed, stays within its bounds, and is of every kind."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.documents import from_json, to_json
from tests.chaos.plan import BURST, FAULTS, LATEST, MOST_FAULTS, NOTICE_SECONDS, STOP_SECONDS, FaultKind, Plan, plan_of

SEEDS = st.integers(0, 2**32)
MANY = [plan_of(seed) for seed in range(400)]


@given(SEEDS)
def test_a_seed_gives_the_same_plan_again_also_by_way_of_a_file(seed: int) -> None:
    plan = plan_of(seed)
    assert plan_of(seed) == plan
    assert from_json(Plan, to_json(plan)) == plan


@given(SEEDS)
def test_a_plan_can_be_carried_out(seed: int) -> None:
    plan = plan_of(seed)
    assert 1 <= plan.minimum <= plan.start <= plan.maximum
    assert 1 <= len(plan.faults) <= MOST_FAULTS * BURST[1]
    assert all(a.at <= b.at for a, b in pairwise(plan.faults))
    for fault in plan.faults:
        assert 0 <= fault.at <= LATEST
        assert 0 <= fault.pick < 1
        if fault.kind is FaultKind.RESIZE:
            assert plan.minimum <= fault.size <= plan.maximum
        elif fault.kind.stops:
            assert STOP_SECONDS[0] <= fault.seconds <= STOP_SECONDS[1]
        elif fault.kind in (FaultKind.NOTICE, FaultKind.NOTICE_ALL):
            assert NOTICE_SECONDS[0] <= fault.seconds <= NOTICE_SECONDS[1] * 1.001
        else:
            assert fault.kind.kills


def test_another_seed_gives_another_plan() -> None:
    assert len({plan.faults for plan in MANY}) == len(MANY)


def test_all_kinds_of_faults_and_settings_come_up() -> None:
    kinds = Counter(fault.kind for plan in MANY for fault in plan.faults)
    assert all(kinds[kind] > 50 for kind in FAULTS)
    assert {plan.minimum for plan in MANY} == {1, 2}
    notices = [fault for plan in MANY for fault in plan.faults if fault.kind is FaultKind.NOTICE]
    assert {fault.taken for fault in notices} == {True, False}
    assert min(fault.seconds for fault in notices) < 0.3
    assert max(fault.seconds for fault in notices) > 10


def test_faults_come_close_to_each_other_and_far() -> None:
    gaps = [b.at - a.at for plan in MANY for a, b in pairwise(plan.faults)]
    assert sum(gap < 0.05 for gap in gaps) > 100
    assert sum(gap > 1.0 for gap in gaps) > 100
