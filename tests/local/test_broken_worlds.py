"""Ranks that do not leave a world that a loss has broken: stopped (SIGSTOP), or in a wait that nothing ends."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from elastic_runtime.run.spec import CheckpointSpec, RecoverySpec, Timing
from elastic_runtime.run.status import EventKind, FailureKind, Phase
from tests.local.conftest import Start
from tests.paced import Script, Undisturbed, has_ended

pytestmark = pytest.mark.timeout(240)


@pytest.mark.parametrize("start", ["torch"], indirect=True)
@pytest.mark.parametrize("asleep", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_rank_that_sleeps_in_a_broken_world_is_stopped_and_the_state_is_kept(
    start: Start, undisturbed: Undisturbed, asleep: int
) -> None:
    timing, recovery = Timing(forming=6.0, stop_grace=1.0), RecoverySpec(backoff=0.1)
    run = start(Script("exact.py", holds=(20,)), (1, 3, 3), timing=timing, recovery=recovery)
    run.at(20)
    worlds = run.trains(3)
    sleeper, lost = run.rank_pid(asleep), run.rank_pid(2)
    os.kill(sleeper, signal.SIGSTOP)
    os.kill(lost, signal.SIGKILL)
    run.until_status(
        lambda status: len(status.history) > worlds and status.world_size == 3, "three ranks after the loss"
    )

    run.succeed()

    assert run.events(EventKind.RESTARTED, EventKind.SUSPENDED) == []
    assert len(run.events(EventKind.RANK_FAILED)) == 2
    assert f"rank {asleep} " in run.log()
    assert "has not left a world that is broken in time" in run.log()
    assert set(run.ledger().steps()) == set(range(1, 71))
    undisturbed.assert_same(run)


@pytest.mark.parametrize("start", ["torch"], indirect=True)
@pytest.mark.parametrize("wait", ["python", "native"])
def test_a_rank_whose_piece_gloo_has_forgotten_goes_on(start: Start, tmp_path: Path, wait: str) -> None:
    (folder := tmp_path / "checkpoints").mkdir()
    run = start(
        Script("unsent.py"),
        (2, 2, 2),
        environment={"WAIT": wait},
        checkpoint=CheckpointSpec(folder.as_uri(), every=3600.0),
        timing=Timing(stop_grace=1.0),
        recovery=RecoverySpec(backoff=0.1),
    )
    run.max_wait = 100.0  # Without a word of the rank it would be timing.forming, 120 s.
    run.at("sent")
    asleep, lost = run.rank_pid(1), run.rank_pid(0)
    os.kill(lost, signal.SIGKILL)
    run.until(lambda: has_ended(lost), "the peer has ended")
    os.kill(asleep, signal.SIGCONT)

    run.succeed()

    # Nothing that was committed is lost. The only rank that has it writes it where it cannot be had back; on a busy
    # machine Gloo's threads may not have come so far as it stopped, and its wait ends with an error as any other.
    assert run.ledger().steps() == Counter(range(1, 11)), run.report("steps")
    assert {note["value"][0] for note in run.notes() if note.get("step") == 10} == {10.0}
    is_stuck = "waits inside torch for a world that is broken" in run.log()
    assert not is_stuck or wait == "native"
    assert ("checkpoint of step 5 " in run.log()) == is_stuck


@pytest.mark.long
@pytest.mark.parametrize("start", ["horovod", "torch"], indirect=True)
def test_an_error_of_each_world_fails_the_run_by_its_words(start: Start) -> None:
    """As of two ranks on one GPU, which NCCL refuses in world after world."""
    script = """
import horovod.torch as hvd
from horovod.common.exceptions import HorovodInternalError
from torch.distributed import DistBackendError
from elastic_runtime.torch import DurableState, elastic
from elastic_runtime.world import current_world

is_horovod = "horovod" in current_world().__class__.__module__
if is_horovod:
    hvd.init()

def train(state):
    raise (HorovodInternalError if is_horovod else DistBackendError)("ncclInvalidUsage: duplicate GPU")

(hvd.elastic.run if is_horovod else elastic.run)(train)(DurableState())
"""
    run = start(Script("none"), (2, 2, 2), ["python", "-c", script], recovery=RecoverySpec(backoff=0.1))
    status = run.end()
    assert (status.phase, status.failure) == (Phase.FAILED, FailureKind.RANK_FAILED), run.report("another end")
    assert "ncclInvalidUsage: duplicate GPU" in status.reason
