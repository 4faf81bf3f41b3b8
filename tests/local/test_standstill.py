"""A rank that keeps the others waiting while all live: it is found, named and replaced alone."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from elastic_runtime.run.spec import RecoverySpec, RestartSpec, Timing
from elastic_runtime.run.status import EventKind, Phase
from tests.local.conftest import Start
from tests.paced import Script, Undisturbed, sizes_of

pytestmark = pytest.mark.timeout(120)
BUSY = """
import time
from datetime import timedelta
import torch
import torch.distributed as dist
from elastic_runtime import busy
from elastic_runtime.engines.torch import own_group
from elastic_runtime.torch import DurableState, elastic

own_group.set_timeout(timedelta(seconds=1))  # As of a rank without a state.


@elastic.run
def train(state):
    while state.step < 4:
        if state.step == 2 and dist.get_rank() == 1:
            with busy("evaluation", at_most=60):
                time.sleep(3)
        dist.all_reduce(torch.ones(1))
        state.step += 1
        state.commit()


train(DurableState(model=torch.nn.Linear(1, 1)))
"""


@pytest.mark.shows(engine="torch", fault="standstill", place="local")
def test_a_rank_that_stands_still_is_named_and_replaced_alone(start: Start, undisturbed: Undisturbed) -> None:
    run = start(
        Script("exact.py", holds=(20,)),
        (1, 3, 3),
        engine="torch",
        timing=Timing(stop_grace=0.5),
        recovery=RecoverySpec(backoff=0.1, standstill=2.0),
    )
    run.at(20)
    run.until_status(lambda status: status.step == 20, "two commits were told")
    others = {run.worker(0).name, run.worker(2).name}
    asleep = run.worker(1).name
    os.kill(run.rank_pid(1), signal.SIGSTOP)
    run.until_status(lambda status: sizes_of(status)[-2:] == [2, 3], "two train on, and then three")

    status = run.finish()

    assert status.phase is Phase.SUCCEEDED
    told = [event.message for event in status.events if event.kind is EventKind.STANDSTILL]
    # Ranks that wait for long for the next one are asked where they stand, too.
    assert any(f"at step 20: rank 1 ({asleep}.0.0): its process is stopped; it is replaced" in each for each in told)
    assert run.events(EventKind.LOST, EventKind.SUSPENDED, EventKind.RESTARTED) == []
    assert run.events(EventKind.RANK_FAILED) == [f"rank_failed {asleep}"]
    assert {each.name for each in status.workers} == {*others, asleep}
    assert set(run.ledger().steps().items()) == {(step, 1) for step in range(1, 71)}
    undisturbed.assert_same(run)


def test_no_collective_ends_while_the_others_wait_for_a_rank_that_is_busy(start: Start, tmp_path: Path) -> None:
    script = tmp_path / "busy.py"
    script.write_text(BUSY)
    run = start(Script("none"), (2, 2, 2), engine="torch", command=("python", str(script)))
    status = run.finish()
    assert (status.phase, status.generation, status.step) == (Phase.SUCCEEDED, 1, 4), run.report("succeeded")
    assert run.events(EventKind.RANK_FAILED, EventKind.STANDSTILL) == []


@pytest.mark.shows(engine=("torchrun", "horovodrun"), fault="standstill", place="local")
@pytest.mark.long
@pytest.mark.parametrize(("engine", "script"), [("torchrun", "restarting.py"), ("horovodrun", "restarting_horovod.py")])
def test_a_script_that_is_restarted_starts_again_where_one_of_its_ranks_stands_still(
    start: Start, engine: str, script: str
) -> None:
    run = start(
        Script(script, epochs=1, holds=(4,)),
        (1, 3, 3),
        engine=engine,
        timing=Timing(stop_grace=0.5),
        recovery=RecoverySpec(backoff=0.1, standstill=3.0),
        restart=RestartSpec(grace=20.0),
    )
    run.at(4)
    run.until_status(lambda status: status.step == 4, "steps were told")
    asleep = run.worker(1).name
    os.kill(run.rank_pid(1), signal.SIGSTOP)

    status = run.finish()

    assert (status.phase, status.generation, status.step) == (Phase.SUCCEEDED, 2, 7), run.report("succeeded")
    told = [event.message for event in status.events if event.kind is EventKind.STANDSTILL]
    stood = f"no rank has reported a step for more than 3 s at step 4: rank 1 ({asleep}.0.0): its process is stopped"
    assert told[-1] == f"{stood}; all ranks start again"
