"""Horovod's own elastic examples for torch, unchanged, which know nothing of this project: resizes and a loss."""

from __future__ import annotations

from math import isfinite
from statistics import mean

import pytest

from tests.local.conftest import Start
from tests.paced import Script
from tests.stock_scripts import HOLDS, RECOVERY, TORCH, through_resizes_and_a_loss

FIRST, *OTHERS = TORCH


@pytest.mark.shows(engine="horovod", fault=("resize", "rank"), place="local")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", [FIRST, *(pytest.param(name, marks=pytest.mark.long) for name in OTHERS)])
def test_trains_through_resizes_and_a_killed_rank(start: Start, name: str) -> None:
    script = Script("horovods.py", (name, *TORCH[name]), holds=HOLDS)
    run = start(script, (1, 2, 3), recovery=RECOVERY)
    through_resizes_and_a_loss(run, run.succeed)
    notes = run.notes()
    losses = [note["loss"] for note in sorted(notes, key=lambda note: note.get("step", 10**6)) if "step" in note]
    assert all(map(isfinite, losses))
    assert mean(losses[-5:]) < mean(losses[:5])
    print(f"{name}: loss {mean(losses[:5]):.3f} -> {mean(losses[-5:]):.3f}")
