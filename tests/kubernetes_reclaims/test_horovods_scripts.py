"""Horovod's own elastic examples for torch, unchanged, in pods."""

from __future__ import annotations

import pytest

from tests.kubernetes_reclaims.conftest import Start
from tests.paced import Script
from tests.stock_scripts import HOLDS, RECOVERY, TORCH, through_resizes_and_a_loss

pytestmark = [pytest.mark.timeout(600), pytest.mark.long]


@pytest.mark.shows(engine="horovod", fault=("resize", "rank"), place="kubernetes")
@pytest.mark.parametrize("name", TORCH)
def test_trains_through_resizes_and_a_killed_rank(start: Start, name: str) -> None:
    run = start(Script("horovods.py", (name, *TORCH[name]), holds=HOLDS), (1, 2, 3), recovery=RECOVERY)
    through_resizes_and_a_loss(run, run.finish)
