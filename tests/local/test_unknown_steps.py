"""Scripts without a state: what the run knows of their steps, and what it calls unknown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from elastic_runtime.documents import to_json
from elastic_runtime.run.status import EventKind, Phase
from elastic_runtime.run.status_figures import LostTime
from tests.local.conftest import Start
from tests.local.test_torchrun_scripts import TRAINS, Uncooperative

pytestmark = pytest.mark.timeout(300)

TELLS = "    report(step=step, loss=1.0)\n"


@pytest.mark.parametrize("tells", [False, True], ids=["tells no step", "calls report"])
def test_the_step_of_a_script_without_a_state(start: Start, tmp_path: Path, *, tells: bool) -> None:
    words = "    report(step)\n" if tells else ""
    script = Uncooperative(start, tmp_path, TRAINS.replace(TELLS, words), (1, 1, 2))
    script.trains(1)
    script.run.until_status(lambda status: (status.step or 0) > 2 if tells else status.world_size == 1, "it trains")
    starting = script.run.status().lost_seconds[LostTime.STARTING]
    script.run.resize(2)
    script.trains(2)
    script.run.until_status(lambda status: status.world_size == 2, "the launcher knows")
    script.succeed()
    status = script.run.status()
    assert status.phase is Phase.SUCCEEDED
    assert status.tells_no_step is not tells
    plain = json.loads(to_json(status))
    scaled = next(event for event in plain["events"] if event["kind"] == EventKind.SCALED)
    for step in (plain["step"], scaled["step"], plain["history"][-1]["step"]):
        assert (step is None) is not tells, "null where it is not known, and never 0"
    assert set(plain["lost_seconds"]) == set(LostTime) - {LostTime.CHECKPOINT}
    assert plain["lost_seconds"][LostTime.STARTING] == starting, "it trains since it was connected"
