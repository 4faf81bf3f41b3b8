"""A training function that returns in one rank, while the others go on: no success, and no wait for ever."""

from __future__ import annotations

import pytest

from elastic_runtime.errors import FailureKind
from elastic_runtime.run.spec import RecoverySpec, Timing
from elastic_runtime.run.status import EventKind, Phase
from tests.local.conftest import Start
from tests.paced import Script

pytestmark = pytest.mark.timeout(300)

LONG = 120.0
"""Seconds for a whole run, with the start of its processes on a busy machine."""
IN_MAKE_TEST = {"horovod": "with", "torch": "nothing", "torch-sharded": "finish"}
"""How a script of its own ends with each engine; what is left out is long."""


@pytest.mark.parametrize(
    "start",
    ["horovod", *(pytest.param(engine, marks=pytest.mark.long) for engine in ("torch", "torch-sharded"))],
    indirect=True,
)
def test_a_rank_that_returns_early_is_named_with_its_step(start: Start) -> None:
    timing = Timing(forming=2.0, stop_grace=1.0)
    script = Script("shorter.py", ("12", "20", "run"))
    run = start(script, (1, 3, 3), timing=timing, recovery=RecoverySpec(backoff=0.1))
    status = run.end(LONG)
    assert (status.phase, status.failure) == (Phase.FAILED, FailureKind.EARLY_EXIT), run.report("another end")
    assert "a rank ended while others were still training: rank 1 ended its training at step 12" in status.reason
    assert run.events(EventKind.RESTARTED, EventKind.RANK_FAILED) == []


@pytest.mark.parametrize("start", ["horovod"], indirect=True)
def test_a_rank_that_returns_while_others_commit_is_named(start: Start) -> None:
    run = start(Script("shorter.py", ("12", "13", "apart")), (2, 2, 2), timing=Timing(stop_grace=1.0))
    status = run.end(LONG)
    assert (status.phase, status.failure) == (Phase.FAILED, FailureKind.EARLY_EXIT), run.report("another end")
    assert "a rank ended while others were still training: rank 1 ended its training at step 12" in status.reason


@pytest.mark.parametrize("start", ["horovod", pytest.param("torch", marks=pytest.mark.long)], indirect=True)
def test_ranks_that_return_at_one_step_succeed(start: Start) -> None:
    run = start(Script("shorter.py", ("12", "12", "run")), (1, 3, 3))
    assert run.end(LONG).phase is Phase.SUCCEEDED, run.report("succeeded")


@pytest.mark.parametrize(
    ("start", "how"),
    [
        pytest.param(engine, how, marks=() if how == IN_MAKE_TEST[engine] else pytest.mark.long)
        for engine in IN_MAKE_TEST
        for how in IN_MAKE_TEST.values()
    ],
    indirect=["start"],
)
def test_a_script_of_its_own_that_ends_early_in_one_rank_is_named(start: Start, how: str) -> None:
    run = start(Script("shorter.py", ("12", "20", how)), (3, 3, 3), timing=Timing(forming=2.0, stop_grace=1.0))
    status = run.end(LONG)
    assert (status.phase, status.failure) == (Phase.FAILED, FailureKind.EARLY_EXIT), run.report("another end")
    step = "" if how == "nothing" else " at step 12"
    assert f"a rank ended while others were still training: rank 1 ended its training{step}" in status.reason
    assert run.events(EventKind.RESTARTED) == []


@pytest.mark.parametrize("start", [pytest.param("horovod", marks=pytest.mark.long), "torch"], indirect=True)
def test_a_script_of_its_own_whose_ranks_end_at_one_step_succeeds(start: Start) -> None:
    run = start(Script("shorter.py", ("12", "12", "finish")), (3, 3, 3))
    assert run.end(LONG).phase is Phase.SUCCEEDED, run.report("succeeded")
