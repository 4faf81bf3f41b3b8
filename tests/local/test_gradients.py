"""Gradients of a step that was broken off, or was over, do not get into the first step of the next world."""

from __future__ import annotations

import pytest

from elastic_runtime.run.spec import RecoverySpec
from elastic_runtime.run.status import EventKind
from tests.local.conftest import Start
from tests.paced import Script, Undisturbed

pytestmark = pytest.mark.timeout(240)

by_engine = pytest.mark.parametrize("start", ["horovod", "torch", "torch-in-place"], indirect=True)


@by_engine
def test_a_rank_killed_in_a_step_leaves_none_to_a_loop_that_zeroes_them_last(
    start: Start, undisturbed: Undisturbed
) -> None:
    """PyTorch's own tutorials have ``zero_grad()`` after ``step()``."""
    run = start(Script("exact.py", zeroes="last", kills=(10, 31)), (1, 3, 3), recovery=RecoverySpec(backoff=0.2))
    run.succeed()
    assert len(run.events(EventKind.RANK_FAILED)) == 2, run.report("failures")
    undisturbed.assert_same(run)


@by_engine
def test_a_change_leaves_none_to_a_loop_that_zeroes_them_after_its_commit(
    start: Start, undisturbed: Undisturbed
) -> None:
    run = start(Script("exact.py", zeroes="after", holds=(10,)), (1, 2, 3))
    run.at(10)
    run.resize(3)
    run.worlds(2, 3)
    run.go(10)
    run.succeed()
    undisturbed.assert_same(run)
