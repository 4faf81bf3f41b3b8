"""How often lines are passed on, and noted, by how many runs there are."""

from __future__ import annotations

import math

import pytest

from elastic_training.clusters.kubernetes.watching.run_watch import BATCHES, NOTES, Batches
from elastic_training.clusters.types import LogLines


class Source:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.taken = 0

    @property
    def waiting(self) -> bool:
        return bool(self.lines)

    def take(self) -> LogLines:
        lines, self.lines = tuple(self.lines), []
        self.taken += len(lines)
        return LogLines(lines, str(self.taken))


@pytest.fixture
def source() -> Source:
    return Source()


def an_hour(source: Source, runs: int) -> list[LogLines]:
    """One line a second."""
    batches, found = Batches(source, lambda: runs), []
    for second in range(3600):
        source.lines.append(f"line {second}")
        if batch := batches.next(float(second), last=False):
            found.append(batch)
    return found


def test_one_run_has_each_second_noted(source: Source) -> None:
    found = an_hour(source, runs=1)
    assert len(found) == 3600
    assert all(batch.note for batch in found)


@pytest.mark.parametrize("runs", [100, 1000])
def test_all_runs_together_stay_under_the_rates(source: Source, runs: int) -> None:
    found = an_hour(source, runs)
    assert len(found) / 3600 * runs == pytest.approx(BATCHES, rel=0.3)
    assert sum(batch.note for batch in found) / 3600 * runs == pytest.approx(NOTES, rel=0.3)
    assert sum(len(batch.lines) for batch in found) + len(source.lines) == 3600


def test_runs_that_begin_together_do_not_stay_together() -> None:
    due = []
    for _ in range(50):
        source = Source()
        source.lines.append("first")
        batches = Batches(source, lambda: 1000)
        assert batches.next(0.0, last=False)
        source.lines.append("second")
        due.append(batches.due)
    assert len(set(due)) > 20


def test_what_was_passed_on_is_noted_in_the_end_though_nothing_more_comes(source: Source) -> None:
    batches = Batches(source, lambda: 1000)
    source.lines.append("first")
    first = batches.next(0.0, last=False)
    assert first is not None
    assert first.note
    source.lines.append("second")
    second = batches.next(batches.due, last=False)
    assert second is not None
    assert second.lines == ("second",)
    assert not second.note
    third = batches.next(batches.due, last=False)
    assert third == LogLines((), "2", note=True)
    assert batches.due == math.inf


def test_the_last_lines_wait_for_nothing(source: Source) -> None:
    batches = Batches(source, lambda: 1000)
    source.lines.append("first")
    batches.next(0.0, last=False)
    source.lines.append("last")
    assert batches.next(0.1, last=False) is None
    assert batches.next(0.1, last=True) == LogLines(("last",), "2", note=True)
    assert batches.next(0.2, last=True) is None
