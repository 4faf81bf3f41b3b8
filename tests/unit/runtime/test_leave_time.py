"""How long ranks need to leave is learned from the run."""

from __future__ import annotations

import pytest

from elastic_runtime.launcher.decision.facts import CommitFact
from elastic_runtime.launcher.leave_time import GAPS, LeaveTime
from elastic_runtime.run.waits import COMMIT_CAUTION, COMMIT_OVERDUE


class Scene:
    """A run on virtual time, whose first world is complete at 0."""

    def __init__(self) -> None:
        self.now = 0.0
        self.leave_time = LeaveTime(lambda: self.now)
        self.leave_time.new_world()

    def commit(self, *gaps: float) -> None:
        """After so many seconds each."""
        for gap in gaps:
            self.now += gap
            self.leave_time.committed()


def test_unknown_before_two_commits() -> None:
    scene = Scene()
    assert scene.leave_time.seconds() is None
    scene.commit(30.0)
    assert scene.leave_time.seconds() is None, "the first step of a world may have compiled"
    scene.commit(2.0)
    assert scene.leave_time.seconds() == COMMIT_CAUTION * 2.0


def test_the_longest_time_between_commits_counts() -> None:
    scene = Scene()
    scene.commit(1.0, 1.0, 4.0, 1.0)
    assert scene.leave_time.seconds() == COMMIT_CAUTION * 4.0


def test_a_long_time_ago_does_not_count() -> None:
    scene = Scene()
    scene.commit(1.0, 4.0, *[1.0] * GAPS)
    assert scene.leave_time.seconds() == COMMIT_CAUTION * 1.0


def test_writes_and_departures_count() -> None:
    scene = Scene()
    scene.commit(1.0, 1.0)
    scene.leave_time.wrote(3.0)
    scene.leave_time.wrote(2.0)
    scene.leave_time.asked()
    scene.now += 0.5
    scene.leave_time.new_world()
    assert scene.leave_time.seconds() == COMMIT_CAUTION * (1.0 + 3.0 + 0.5)


def test_a_world_that_nobody_was_asked_to_leave_is_no_departure() -> None:
    scene = Scene()
    scene.commit(1.0, 1.0)
    scene.now += 60.0
    scene.leave_time.new_world()
    assert scene.leave_time.seconds() == COMMIT_CAUTION * 1.0


def test_how_a_run_commits_is_not_known_before_its_second_commit() -> None:
    assert LeaveTime(lambda: 0.0).commits is None, "there is no world"
    scene = Scene()
    assert scene.leave_time.commits == CommitFact(scene.now, None, begun=False)
    scene.commit(1.0)
    assert scene.leave_time.commits == CommitFact(scene.now, None, told=1)
    assert scene.leave_time.seconds() is None
    scene.commit(2.0)
    assert scene.leave_time.commits == CommitFact(scene.now, 2.0, told=2)


@pytest.mark.parametrize(("late", "known"), [(COMMIT_OVERDUE, True), (COMMIT_OVERDUE + 0.1, False)])
def test_unknown_while_a_commit_is_overdue(late: float, known: bool) -> None:
    """Ranks that evaluate leave when they are through, which nobody can tell."""
    scene = Scene()
    scene.commit(1.0, 1.0)
    scene.now += COMMIT_CAUTION * 1.0 + late
    assert (scene.leave_time.seconds() is not None) == known
