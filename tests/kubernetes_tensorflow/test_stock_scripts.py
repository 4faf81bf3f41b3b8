"""Horovod's own elastic examples for TensorFlow, and a tutorial's loop, in pods."""

from __future__ import annotations

import pytest

from tests.kubernetes_reclaims.conftest import Start
from tests.paced import Script
from tests.stock_scripts import HOLDS, RECOVERY, TENSORFLOW, losses_printed, through_resizes_and_a_loss

pytestmark = pytest.mark.timeout(900)


@pytest.mark.shows(engine="horovod", framework="tensorflow", fault=("resize", "rank"), place="kubernetes")
@pytest.mark.parametrize("name", TENSORFLOW)
def test_trains_through_resizes_and_a_killed_rank(start: Start, name: str) -> None:
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3"}
    script = Script("horovods.py", (name, *TENSORFLOW[name]), holds=HOLDS)
    run = start(script, (1, 2, 3), recovery=RECOVERY, environment=quiet)
    through_resizes_and_a_loss(run, run.finish)
    losses = losses_printed(run.log())
    print(name, losses[:1], losses[-1:])
