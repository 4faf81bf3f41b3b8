"""How launchers and agents share cores with ranks, in processes of their own: a policy is a thread's."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

OTHER, BATCH = os.SCHED_OTHER, os.SCHED_BATCH
PROGRAM = """
import os, subprocess, sys
from elastic_runtime.scheduling import VARIABLE, stand_beside_ranks, stand_beside_ranks_no_more
if sys.argv[1:] == ["rank"]:
    stand_beside_ranks_no_more()
    print(os.sched_getscheduler(0), VARIABLE in os.environ)
    sys.exit()
os.sched_setscheduler(0, {given}, os.sched_param(0))
stand_beside_ranks()
print(os.sched_getscheduler(0), VARIABLE in os.environ, flush=True)
subprocess.run([sys.executable, "-c", {program!r}, "rank"], check=True)
"""


@pytest.mark.parametrize(
    ("given", "own", "ranks"),
    [
        pytest.param(OTHER, f"{BATCH} True", f"{OTHER} False", id="as usual"),
        pytest.param(BATCH, f"{BATCH} False", f"{BATCH} False", id="a policy that somebody has chosen"),
        pytest.param(os.SCHED_IDLE, f"{os.SCHED_IDLE} False", f"{os.SCHED_IDLE} False", id="another one"),
    ],
)
def test_a_rank_has_the_policy_that_the_process_around_was_given(given: int, own: str, ranks: str) -> None:
    program = PROGRAM.replace("{given}", str(given))
    program = program.replace("{program!r}", repr(PROGRAM.replace("{given}", "0").replace("{program!r}", "''")))
    ended = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    assert ended.stdout.splitlines() == [own, ranks]
