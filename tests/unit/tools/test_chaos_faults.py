"""Whom a fault of ``make chaos`` hits."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.status import WorkerState, WorkerStatus
from tests.chaos.faults import Target, choose
from tests.chaos.plan import Fault, FaultKind

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def worker(name: str, *pids: int) -> WorkerStatus:
    return WorkerStatus(name, "here", WorkerState.TRAINING, NOW, slots=1, pids=pids)


HERE = [worker("worker-0", 10, 11), worker("worker-1", 20), worker("worker-2", 30, 31)]


@pytest.mark.parametrize(
    ("kind", "pick", "target"),
    [
        (FaultKind.KILL_RANK, 0.0, Target(("worker-0",), (11,))),
        (FaultKind.KILL_RANK, 0.5, Target(("worker-2",), (31,))),
        (FaultKind.STOP_RANK, 0.999, Target(("worker-2",), (31,))),
        (FaultKind.KILL_ALL_RANKS, 0.0, Target(("worker-0", "worker-2"), (11, 31))),
        (FaultKind.KILL_AGENT, 0.0, Target(("worker-0",), (10,), (11,))),
        (FaultKind.STOP_AGENT, 0.5, Target(("worker-1",), (20,))),
        (FaultKind.NOTICE, 0.999, Target(("worker-2",), (30,), (31,))),
        (FaultKind.NOTICE_ALL, 0.0, Target(("worker-0", "worker-1", "worker-2"), ())),
    ],
)
def test_a_fault_hits_whom_it_is_meant_for(kind: FaultKind, pick: float, target: Target) -> None:
    assert choose(Fault(0.0, kind, pick), HERE) == target


@pytest.mark.parametrize("kind", [kind for kind in FaultKind if kind is not FaultKind.RESIZE])
def test_a_fault_waits_while_nobody_is_there(kind: FaultKind) -> None:
    assert choose(Fault(0.0, kind), []) is None


@given(st.floats(0.0, 1.0, exclude_max=True), st.integers(1, 6))
def test_any_pick_hits_somebody(pick: float, workers: int) -> None:
    here = [worker(f"worker-{index}", index) for index in range(workers)]
    target = choose(Fault(0.0, FaultKind.KILL_AGENT, pick), here)
    assert target is not None
    assert target.signalled == (int(pick * workers),)
