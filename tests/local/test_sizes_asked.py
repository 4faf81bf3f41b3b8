"""Whatever stands where sizes are asked for, the run has one within its bounds, and says so there."""

from __future__ import annotations

import pytest

from elastic_runtime.documents import write_atomically
from elastic_runtime.run.spec import PlanWindow, SizePlan
from elastic_runtime.run.status import EventKind, Phase
from tests.local.conftest import Start
from tests.paced import Script

pytestmark = pytest.mark.timeout(300)

ALWAYS = SizePlan("Asia/Shanghai", 2, (PlanWindow(3, "00:00", "24:00"),))


def test_sizes_out_of_bounds_and_garbage_are_brought_back(start: Start) -> None:
    run = start(Script("exact.py", holds=(5, 10, 15)), (1, 2, 3))
    run.at(5)
    for written, size in (("9", 3), ("three\x1b[31m", 3), ("-4", 1)):
        write_atomically(run.folder.path / "size", written)
        run.until_status(lambda status, size=size: run.folder.asked_size() == size, f"a size of {size}")
    run.go(5)
    for step in (10, 15):
        run.at(step)
        run.go(step)
    status = run.finish()
    assert status.phase is Phase.SUCCEEDED
    told = [event.message for event in status.events if event.kind is EventKind.SIZE_ASKED]
    assert told == [
        "9 workers asked for, outside 1 to 3: brought back to 3",
        r"'three\x1b[31m' is not a number of workers: 3 as before",
        "-4 workers asked for, outside 1 to 3: brought back to 1",
    ]


def test_a_size_plan_is_carried_out_by_the_launcher_and_a_wish_wins(start: Start) -> None:
    run = start(Script("exact.py", holds=(5, 10)), (1, 2, 4), size_plan=ALWAYS)
    run.at(5)
    run.worlds(3)
    run.resize(2)
    run.worlds(3, 2)
    run.go(5)
    run.at(10)
    run.go(10)
    status = run.finish()
    assert status.phase is Phase.SUCCEEDED
    assert status.plan_window is not None
    assert run.folder.asked_size() == 2
