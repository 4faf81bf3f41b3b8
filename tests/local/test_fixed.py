"""Fixed mode: only at exactly the wanted size, paused and holding the state in between."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from elastic_runtime.run.spec import CheckpointSpec, RecoveryMode, RecoverySpec
from elastic_runtime.run.status import EventKind, Phase
from tests.local.conftest import Start
from tests.paced import Script, Undisturbed, sizes_of

pytestmark = pytest.mark.timeout(300)


def test_a_fixed_run_pauses_until_all_are_back_and_goes_on_where_it_was(start: Start, undisturbed: Undisturbed) -> None:
    recovery = RecoverySpec(mode=RecoveryMode.FIXED, backoff=1.0)
    run = start(Script("exact.py", holds=(20, 40)), (1, 3, 3), recovery=recovery)
    run.at(20)
    os.kill(run.agent_pid(run.worker(1).name), signal.SIGKILL)
    run.worlds(3, 0, 3)
    [paused] = [event.message for event in run.status().events if event.kind is EventKind.SUSPENDED]
    assert "the least is 3" in paused
    run.go(20)
    run.at(40)
    run.resize(2)  # Another size that it is fixed at.
    run.worlds(3, 0, 3, 2)

    status = run.finish()

    assert status.phase is Phase.SUCCEEDED
    assert sizes_of(status) == [3, 0, 3, 2, 0]
    told = (EventKind.LOST, EventKind.SUSPENDED, EventKind.RESUMED, EventKind.SCALED, EventKind.RESTARTED)
    assert [event.split()[0] for event in run.events(*told)] == ["lost", "suspended", "resumed", "scaled", "scaled"]
    assert set(run.ledger().sizes().values()) == {2, 3}
    assert set(run.ledger().steps().items()) == {(step, 1) for step in range(1, 71)}
    undisturbed.assert_same(run)


def test_a_run_that_tunes_itself_starts_anew_when_one_is_lost(
    start: Start, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """Horovod's processes tune each on from where it is, and with a newcomer among them they crash or hang."""
    figures = tmp_path / "tuning.csv"
    run = start(
        Script("exact.py", holds=(20,)),
        (3, 3, 3),
        recovery=RecoverySpec(mode=RecoveryMode.FIXED, backoff=0.5),
        checkpoint=CheckpointSpec((tmp_path / "checkpoints").as_uri(), every=0.1),
        environment={
            "HOROVOD_AUTOTUNE": "1",
            "HOROVOD_AUTOTUNE_LOG": str(figures),
            "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "1",
            "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "1",
        },
    )
    run.at(20)
    run.until_status(lambda status: status.checkpoint and status.checkpoint.step == 20, "a checkpoint of step 20")
    os.kill(run.agent_pid(run.worker(1).name), signal.SIGKILL)
    run.worlds(3, 0, 3)

    status = run.finish()

    assert status.phase is Phase.SUCCEEDED
    assert "cannot tune over two worlds" in run.log()
    assert [event.step for event in status.events if event.kind is EventKind.RESUMED and event.step == 20]
    assert set(run.ledger().steps().items()) == {(step, 1) for step in range(1, 71)}
    assert len(figures.read_text().splitlines()) > 1
    undisturbed.assert_same(run)
