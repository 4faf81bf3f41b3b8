"""Ranks with processes of their own, as workers of a DataLoader: none outlives its rank, and none delays others."""

from __future__ import annotations

import os
import re
import signal

import psutil
import pytest

from elastic_runtime.run.status import EventKind, Status
from tests.local.conftest import Start
from tests.local.harness import ScriptedRun
from tests.paced import Script, has_ended, until

pytestmark = pytest.mark.timeout(300)

LOADING = Script("loading.py", epochs=3, holds=(5, 10))
TROUBLE = ("ConnectionResetError", "BrokenPipeError", "Traceback", "Exception ignored")
"""What a DataLoader prints, by the page, where its workers' rank goes without them."""


def children(run: ScriptedRun, worker: str) -> list[int]:
    """Processes that this worker's rank has started, with theirs; they run."""
    of_rank = [note["children"] for note in run.notes() if note.get("worker") == worker][-1]
    assert len(of_rank) == 3
    found = [child.pid for pid in of_rank for child in psutil.Process(pid).children()] + of_rank
    assert len(found) == 4, "the shell's job, too"
    return found


def events_of_loss(status: Status) -> list[EventKind]:
    return [event.kind for event in status.events if event.kind in (EventKind.RANK_FAILED, EventKind.LOST)]


@pytest.mark.parametrize("engine", ["horovod", pytest.param("torch", marks=pytest.mark.long)])
def test_a_killed_rank_leaves_none_and_the_next_world_comes(start: Start, engine: str) -> None:
    run = start(LOADING, (2, 2, 2), engine=engine)
    run.at(5)
    run.worlds(2)
    left = children(run, run.worker(1).name)
    run.kill_rank(1)
    run.until_status(events_of_loss, "its loss")
    run.until(lambda: all(map(has_ended, left)), "its processes have ended", max_wait=30.0)
    run.go(5)
    run.at(10)
    run.until_status(lambda status: status.world_size == 2 and status.step == 10, "the next world")
    run.succeed()
    assert not [words for words in TROUBLE if words in of_rank(run.log(), 1)]


@pytest.mark.parametrize("engine", [pytest.param("horovod", marks=pytest.mark.long), "torch"])
def test_a_rank_with_a_notice_leaves_none(start: Start, engine: str) -> None:
    run = start(LOADING, (1, 2, 2), engine=engine)
    run.at(5)
    run.worlds(2)
    left = children(run, worker := run.worker(1).name)
    run.reclaim(worker)
    run.worlds(2, 1, 2)
    run.until(lambda: all(map(has_ended, left)), "its processes have ended")
    run.go(5)
    run.at(10)
    run.succeed()
    assert not events_of_loss(run.status())
    assert not [words for words in TROUBLE if words in run.log()]


def test_a_killed_agent_leaves_none(start: Start) -> None:
    run = start(LOADING, (1, 2, 2), engine="torch")
    run.at(5)
    run.worlds(2)
    left = children(run, worker := run.worker(1).name)
    os.kill(run.agent_pid(worker), signal.SIGKILL)
    run.until(lambda: all(map(has_ended, left)), "its processes have ended")
    run.succeed()


def test_a_killed_launcher_leaves_none(start: Start) -> None:
    run = start(LOADING, (2, 2, 2), engine="torch")
    run.at(5)
    run.worlds(2)
    left = [pid for rank in (0, 1) for pid in children(run, run.worker(rank).name)]
    run.launcher.kill()
    run.launcher.wait()
    run.assert_no_process(max_wait=30.0)
    until(lambda: all(map(has_ended, left)), "no loader of data is left", 30.0)


def of_rank(log: str, rank: int) -> str:
    return "\n".join(line for line in log.splitlines() if f" [{rank}]<" in line)


def test_a_progress_bar_comes_as_whole_lines_and_not_too_many(start: Start) -> None:
    run = start(LOADING, (1, 1, 1), engine="torch")
    run.at(5)
    run.until(lambda: bars(run), "a bar is told before its line ends")
    run.at(5)
    run.go(5)
    run.at(10)
    status = run.succeed()
    assert "\r" not in run.log()
    drawn = bars(run)
    steps = [int(step) for step, _, filled in drawn if len(filled) == int(step)]
    assert len(steps) == len(drawn), "cut off"
    assert steps == sorted(steps)
    assert drawn[-1][:2] == ("21", "49")
    seconds = (status.events[-1].time - status.events[0].time).total_seconds()
    assert len(drawn) <= 2 + seconds / 5, "of 1,050 that were drawn"


def bars(run: ScriptedRun) -> list[tuple[str, str, str]]:
    """Step, time that it was drawn in that step, and its filled part, of each bar in the log."""
    lines = [line for line in run.log().splitlines() if "<stderr>" in line]
    found = [re.search(r"<stderr>: (\d+)/21, at (\d\d) \|(#*) *\|$", line) for line in lines]
    assert all(found), lines
    return [match.groups() for match in found if match]  # type: ignore[misc]
