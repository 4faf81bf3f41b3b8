"""Horovod's own elastic examples, and a tutorial's loop with Horovod in it: they know nothing of this project."""

from __future__ import annotations

import pytest

from tests.local.conftest import Start
from tests.paced import Script
from tests.stock_scripts import HOLDS, RECOVERY, TENSORFLOW, losses_printed, through_resizes_and_a_loss
from tests.tensorflow.conftest import ENVIRONMENT, SCRIPTS


@pytest.mark.shows(engine="horovod", framework="tensorflow", fault=("resize", "rank"), place="local")
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", TENSORFLOW)
def test_trains_through_resizes_and_a_killed_rank(start: Start, name: str) -> None:
    script = Script("horovods.py", (name, *TENSORFLOW[name]), holds=HOLDS)
    run = start(script, (1, 2, 3), script.command(SCRIPTS), recovery=RECOVERY, environment=ENVIRONMENT)
    through_resizes_and_a_loss(run, run.succeed)
    losses = losses_printed(run.log())
    print(name, losses[0], losses[-1])
    assert losses[-1] < losses[0]
