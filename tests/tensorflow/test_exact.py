"""DurableState and GlobalBatches under Keras: resizes and losses change nothing about the training."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from elastic_runtime.run.spec import CheckpointSpec, RecoverySpec
from elastic_runtime.run.status import EventKind, Phase
from tests.local.conftest import Start
from tests.local.harness import ScriptedRun
from tests.paced import Script, sizes_of
from tests.tensorflow.conftest import ENVIRONMENT, SCRIPTS

pytestmark = pytest.mark.timeout(300)
WAYS = {"fit": "fit", "dataset": "dataset", "hand": "hand", "micro": "fit"}
"""Each with the one whose undisturbed weights are its own: accumulated gradients are those of the whole batch."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[float]]:
    """The weights at the end of a training with two ranks to which nothing happens."""
    known: dict[str, list[float]] = {}

    def weights(way: str) -> list[float]:
        if way not in known:
            script = Script("exact.py", (way,))
            folder = tmp_path_factory.mktemp("undisturbed") / "run"
            run = ScriptedRun(folder, script, (2, 2, 2), script.command(SCRIPTS), environment=ENVIRONMENT).start()
            try:
                assert run.end().phase is Phase.SUCCEEDED, run.report("succeeded")
                known[way] = run.weights()
            finally:
                run.close()
        return known[way]

    return weights


def assert_same(run: ScriptedRun, weights: list[float]) -> None:
    assert run.weights() == pytest.approx(weights, abs=1e-5 * max(map(abs, weights)))
    loss = next(note["loss"] for note in run.notes() if "loss" in note)
    print(run.script.arguments, sizes_of(run.status()), f"loss {loss:.6f}")


@pytest.mark.shows(engine="horovod", framework="tensorflow", fault=("resize", "rank"), place="local")
@pytest.mark.parametrize("way", WAYS)
def test_resizes_and_a_killed_rank_change_nothing(
    way: str, start: Start, undisturbed: Callable[[str], list[float]]
) -> None:
    script = Script("exact.py", (way,), holds=(10, 25, 40, 60))
    run = start(script, (1, 2, 3), script.command(SCRIPTS), environment=ENVIRONMENT, recovery=RecoverySpec(backoff=2.0))
    run.at(10)
    run.resize(3)
    run.worlds(2, 3)
    run.go(10)
    run.at(25)
    run.resize(2)
    run.worlds(2, 3, 2)
    run.go(25)
    run.at(40)
    os.kill(run.rank_pid(0), signal.SIGKILL)
    run.worlds(2, 3, 2, 1)
    run.go(40)
    run.at(60)
    run.worlds(2, 3, 2, 1, 2)

    status = run.finish()

    assert status.phase is Phase.SUCCEEDED, run.report("succeeded")
    assert run.events(EventKind.RESTARTED) == []
    assert max(note["step"] for note in run.notes() if "step" in note) == 70
    assert_same(run, undisturbed(WAYS[way]))


def test_a_new_session_goes_on_from_the_durable_checkpoint(
    start: Start, undisturbed: Callable[[str], list[float]], tmp_path: Path
) -> None:
    script = Script("exact.py", ("fit",), holds=(30,), commit_every=5)
    checkpoint = CheckpointSpec((tmp_path / "checkpoints").as_uri(), every=0.05)
    run = start(script, (1, 2, 3), script.command(SCRIPTS), environment=ENVIRONMENT, checkpoint=checkpoint)
    run.at(30)
    run.until_status(lambda status: status.checkpoint and status.checkpoint.step >= 30, "step 30 is durable")
    for rank in (0, 1):
        os.kill(run.rank_pid(rank), signal.SIGKILL)
    run.until_status(lambda status: status.world_size == 0, "no rank is left")

    status = run.finish()

    assert status.phase is Phase.SUCCEEDED, run.report("succeeded")
    assert len(run.events(EventKind.RESTARTED)) == 1
    assert sorted(note["joined"] for note in run.notes() if "joined" in note) == [0, 0, 30, 30]
    assert status.checkpoint is not None
    assert status.checkpoint.step == 70
    assert status.metrics["loss"] >= 0
    assert_same(run, undisturbed("fit"))


@pytest.mark.shows(engine="horovod", framework="tensorflow", fault="notice", place="local")
def test_a_notice_hands_over(start: Start, undisturbed: Callable[[str], list[float]], tmp_path: Path) -> None:
    script = Script("exact.py", ("fit",), holds=(20, 30))
    checkpoint = CheckpointSpec((tmp_path / "checkpoints").as_uri(), every=3600)
    run = start(script, (1, 2, 3), script.command(SCRIPTS), environment=ENVIRONMENT, checkpoint=checkpoint)
    run.at(20)
    run.reclaim(run.worker(0).name)
    run.until_status(lambda status: status.checkpoint and status.checkpoint.step == 20, "a hand-over checkpoint")
    run.go(20)
    run.at(30)
    run.until_status(lambda status: status.world_size == 2, "it was replaced")

    status = run.finish()

    assert status.phase is Phase.SUCCEEDED, run.report("succeeded")
    assert run.events(EventKind.RESTARTED, EventKind.LOST) == []
    assert_same(run, undisturbed("fit"))
