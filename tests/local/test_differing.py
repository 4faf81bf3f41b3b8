"""A rank that does not do what the others do: it is found, named and replaced alone, or the run ends with that."""

from __future__ import annotations

import pytest

from elastic_runtime.errors import FailureKind
from elastic_runtime.run.spec import RecoverySpec, Timing
from elastic_runtime.run.status import EventKind, Phase
from tests.local.conftest import Start
from tests.local.harness import ScriptedRun
from tests.paced import Script, sizes_of

pytestmark = pytest.mark.timeout(300)
LONG = 200.0
"""Seconds for a run that waits for itself, on a busy machine."""


def differing(start: Start, case: str, *, holds: tuple[int, ...] = ()) -> ScriptedRun:
    script = Script("differing.py", (case, "40"), holds=holds)
    recovery = RecoverySpec(backoff=0.1)
    return start(script, (1, 3, 3), timing=Timing(stop_grace=0.5), recovery=recovery)


def told(run: ScriptedRun) -> list[str]:
    kinds = (EventKind.RANKS_DIFFER, EventKind.STANDSTILL)
    return [event.message for event in run.status().events if event.kind in kinds]


@pytest.mark.parametrize("start", ["torch"], indirect=True)
def test_a_rank_that_does_not_do_the_same_is_replaced_and_what_ranks_may_do_alone_is_not_told(start: Start) -> None:
    """Its collectives fit the others' by their sizes, so that nothing fails."""
    run = differing(start, "kinds", holds=(32,))
    run.at(32)
    run.until_status(lambda status: sizes_of(status)[-2:] == [2, 3], "two train on, and then three")
    run.succeed()
    (found,) = told(run)
    assert "by commit" in found
    assert "has begun other collectives than rank 0, or in another order: it began all_reduce int32[8]" in found
    assert "where rank 0 began all_reduce float32[8], as collective 5 of step 6; it is replaced" in found
    assert len(run.events(EventKind.RANK_FAILED)) == 1
    assert run.events(EventKind.LOST, EventKind.SUSPENDED, EventKind.RESTARTED) == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("start", "case", "says"),
    [
        ("horovod", "uncommitted", "it has begun 5 commits in this world, the others 6"),
        ("torch", "uncommitted", "is at step"),
        ("torch-sharded", "unstepped", "steps of its optimizers, and rank 0"),
    ],
    indirect=["start"],
)
def test_a_rank_that_differs_once_is_replaced(start: Start, case: str, says: str) -> None:
    run = differing(start, case, holds=(32,))
    run.at(32)
    run.until_status(lambda status: sizes_of(status)[-2:] == [2, 3], "two train on, and then three")
    run.succeed()
    (found,) = told(run)
    assert says in found
    assert "it is replaced" in found


@pytest.mark.long
@pytest.mark.parametrize(
    ("start", "case"),
    [("horovod", "extra"), ("horovod", "uneven"), ("torch", "uneven"), ("torch-sharded", "uneven")],
    indirect=["start"],
)
def test_a_rank_that_differs_again_at_the_same_step_ends_the_run(start: Start, case: str) -> None:
    run = differing(start, case)
    status = run.end(LONG)
    assert (status.phase, status.failure) == (Phase.FAILED, FailureKind.STANDSTILL), run.report("another end")
    assert "ranks wait for each other at step" in told(run)[0]
    assert "rank 1 (" in told(run)[0]
    assert "All ranks must call the same collectives" in status.reason


@pytest.mark.long
@pytest.mark.parametrize("start", ["horovod", "torch", "torch-sharded"], indirect=True)
def test_a_rank_that_returns_while_others_wait_for_it_ends_the_run(start: Start) -> None:
    status = differing(start, "early").end(LONG)
    assert (status.phase, status.failure) == (Phase.FAILED, FailureKind.EARLY_EXIT)
    assert "rank 1 ended its training at step 12, and rank 0" in status.reason
