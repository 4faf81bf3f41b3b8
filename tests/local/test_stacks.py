"""Where the ranks of a run stand that stands still."""

from __future__ import annotations

import pytest

from elastic_runtime.errors import FailureKind
from elastic_runtime.run.status import EventKind
from tests.local.conftest import Start
from tests.paced import Script

pytestmark = pytest.mark.timeout(240)


def test_each_rank_tells_where_it_stands_also_inside_horovod(start: Start) -> None:
    run = start(Script("faulty.py", ("stands_still",)))
    run.until_status(lambda status: status.started is not None, "the first world")
    # The second waits in Python, the first for it in C.
    asked = 0

    def told() -> bool:
        nonlocal asked
        lines = [line for line in run.log().splitlines() if "<stderr>:" in line and "stands_still" in line]
        if {rank for rank in "01" if any(f"[{rank}]<stderr>:" in line for line in lines)} == {"0", "1"}:
            return True
        asked += 1
        run.folder.ask_for_stacks(str(asked))  # The first may come before the ranks stand there.
        return False

    run.until(told, "both ranks tell where they stand", 60.0)
    run.until_status(
        lambda status: any(event.kind is EventKind.STACKS for event in status.events), "an event tells of it"
    )
    assert {worker.name for worker in run.status().workers} == {"worker-0", "worker-1"}, "somebody was ended by it"
    run.folder.ask_to_end("it stands still")
    status = run.end(max_wait=30.0)
    assert status.failure is FailureKind.CANCELLED
    assert status.rank_failures == 0


def test_a_command_that_is_no_python_is_not_ended_by_the_question(start: Start) -> None:
    run = start(Script("faulty.py", ("trains",)), command=("sleep", "600"))
    run.until_status(lambda status: any(len(worker.pids) > 1 for worker in status.workers), "a rank runs")
    run.folder.ask_for_stacks("1")
    status = run.until_status(lambda status: any(event.kind is EventKind.STACKS for event in status.events), "asked")
    run.folder.ask_to_end("enough")
    status = run.end(max_wait=30.0)
    assert status.rank_failures == 0
