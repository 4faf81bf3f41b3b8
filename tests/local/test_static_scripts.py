"""Scripts for Horovod without an elastic state: started again for each world if asked to, else not grown."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic_runtime.launcher.record.misuse import STATIC
from elastic_runtime.run.spec import RecoverySpec, RestartSpec
from elastic_runtime.run.status import EventKind
from tests.local.conftest import Start
from tests.local.harness import ScriptedRun
from tests.paced import Script, sizes_of
from tests.steered import STANDIN, Steered, steering

pytestmark = pytest.mark.timeout(240)

SCRIPT = Script("restarting_horovod.py", epochs=1, holds=(4,))


def warnings(run: ScriptedRun) -> list[str]:
    return [event.message for event in run.status().events if event.kind is EventKind.WARNING]


@pytest.mark.shows(engine="horovodrun", fault="resize", place="local")
def test_a_script_goes_on_from_its_own_checkpoint_with_more_ranks(start: Start) -> None:
    run = start(SCRIPT, (1, 2, 3), engine="horovodrun", restart=RestartSpec())
    run.at(4)
    run.resize(3)
    run.worlds(2, 3)
    run.go(4)
    assert sizes_of(run.succeed()) == [2, 3, 0]
    assert run.ledger().steps() == dict.fromkeys(range(1, 8), 1)
    assert warnings(run) == []


@pytest.mark.shows(engine="horovodrun", fault="resize", place="local")
@pytest.mark.long
def test_the_example_loses_no_step_of_a_planned_change(start: Start, tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "dags" / "examples" / "frameworks" / "train_horovod.py"
    run = start(
        Script("none"),
        (1, 2, 3),
        ("python", str(script), "--folder", str(tmp_path / "checkpoints"), "--steps", "20", "--save-every", "100"),
        path=(STANDIN,),
        engine="horovodrun",
        restart=RestartSpec(),
        recovery=RecoverySpec(backoff=0.5),
        environment={**steering(tmp_path, 3), "ELASTIC_RUNTIME_PRELOAD": "held_torch"},
    )
    held = Steered(run, tmp_path, 3)
    for size in (2, 3, 2):
        run.resize(size)
        held.stands(size)
    held.succeed()
    begun = 1  # Horovod's broadcast makes a step of an optimizer that has no state yet.
    assert len([rank for _, _, rank, *_ in held.steps() if rank == 0]) == begun + 20, "each step was done once"
    assert (tmp_path / "checkpoints" / "step-000000020.pt").exists()
    assert warnings(run) == []


@pytest.mark.long
def test_a_script_that_cannot_grow_keeps_its_world_and_no_worker_idles(start: Start) -> None:
    run = start(SCRIPT, (1, 2, 3))
    run.at(4)
    run.until_status(lambda _: warnings(run) == [STATIC], "it is told")
    run.resize(3)
    run.until_status(
        lambda status: (
            len(warnings(run)) == 2
            and status.target_size == 2 == len([each for each in status.workers if not each.state.gone])
        ),
        "the third worker is given back",
    )
    assert "cannot use 3 workers: the run stays at 2" in warnings(run)[1]
    run.go(4)
    assert sizes_of(run.succeed()) == [2, 0]
    assert run.ledger().steps() == dict.fromkeys(range(1, 8), 1)
