"""Holes in the recovery of Elastic Horovod's own ``run`` under TensorFlow: the table of ``engines/horovod``."""

from __future__ import annotations

import pytest

from elastic_runtime.run.spec import RecoverySpec
from elastic_runtime.run.status import EventKind, Phase
from tests.local.conftest import Start
from tests.local.harness import ScriptedRun
from tests.paced import Script
from tests.tensorflow.conftest import ENVIRONMENT, SCRIPTS

pytestmark = pytest.mark.timeout(180)


def begin(start: Start, place: str, holds: tuple[int, ...] = ()) -> ScriptedRun:
    script = Script("holes.py", (place,), holds=holds)
    recovery = RecoverySpec(backoff=0.2)
    return start(script, (1, 3, 4), script.command(SCRIPTS), environment=ENVIRONMENT, recovery=recovery)


def assert_nothing_was_lost(run: ScriptedRun) -> None:
    status = run.finish()
    assert status.phase is Phase.SUCCEEDED, run.report("succeeded")
    assert run.events(EventKind.RESTARTED) == []
    assert (run.base / "died").exists()
    assert "Traceback" not in run.log() or "reset callback" in run.script.arguments
    assert run.weights() == [12.0]


@pytest.mark.parametrize("place", ["sync", "grouped allreduce", "reduce-scatter", "alltoall"])
def test_the_others_go_on_when_a_rank_is_lost_in(place: str, start: Start) -> None:
    assert_nothing_was_lost(begin(start, place))


def test_the_others_go_on_when_a_rank_is_lost_in_a_reset_callback(start: Start) -> None:
    run = begin(start, "reset callback", holds=(3,))
    run.at(3)
    run.resize(4)
    run.until((run.base / "died").exists, "rank 1 is lost")
    assert_nothing_was_lost(run)


@pytest.mark.parametrize(("place", "words"), [("another error", "FailedPrecondition"), ("unknown error", "on fire")])
def test_an_error_that_no_lost_rank_explains_is_no_success(place: str, words: str, start: Start) -> None:
    run = begin(start, place)
    status = run.finish()
    assert status.phase is Phase.FAILED
    assert words in run.log()
