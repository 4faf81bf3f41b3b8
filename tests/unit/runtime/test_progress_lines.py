"""How far the training is, in the log of a run whose script says little itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from elastic_runtime.launcher.record.output import FEW_LINES, PROGRESS_INTERVAL, TIME_LEFT_INTERVAL, ProgressLines
from elastic_runtime.run.status_progress import Progress, duration_words


@dataclass
class Clock:
    time: float = 0.0

    def __call__(self) -> float:
        return self.time


@dataclass
class Record:
    step: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    ranks: int = 2
    time_left: Progress | None = None

    @property
    def progress(self) -> tuple[int | None, Mapping[str, float], float | None, int, Progress | None]:
        return self.step, self.metrics, 35.123, self.ranks, self.time_left


def test_a_line_comes_every_so_often_while_steps_do(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    lines, record = ProgressLines(clock := Clock()), Record()
    for second in range(1, int(4 * PROGRESS_INTERVAL) + 1):
        clock.time = float(second)
        record.step = min(second, int(2 * PROGRESS_INTERVAL))  # Then it stands still.
        record.metrics = {"loss": 1 / second}
        lines.look(record, 0)
    assert [each.getMessage() for each in caplog.records] == [
        "step 30, loss 0.03333, 35.1 steps/s, 2 ranks",
        "step 60, loss 0.01667, 35.1 steps/s, 2 ranks",
    ]


@pytest.mark.parametrize(("written", "ranks", "told"), [(FEW_LINES, 2, 1), (FEW_LINES + 1, 2, 0), (0, 0, 0)])
def test_none_comes_where_the_ranks_say_enough_or_do_not_train(
    caplog: pytest.LogCaptureFixture, written: int, ranks: int, told: int
) -> None:
    caplog.set_level("INFO")
    lines = ProgressLines(clock := Clock())
    clock.time = PROGRESS_INTERVAL
    lines.look(Record(step=5, ranks=ranks), written)
    assert len(caplog.records) == told


def test_the_time_left_comes_once_a_minute_however_much_the_ranks_say(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    lines, record = ProgressLines(clock := Clock()), Record(time_left=Progress(500, 40.0, 720.0, 600.0, 5400.0))
    for second in range(1, int(3 * TIME_LEFT_INTERVAL)):
        clock.time = float(second)
        record.step = second
        lines.look(record, 100 * second)
    left = "; 40 % of 500 steps, about 12 min left (10 min to 90 min)"
    assert [each.getMessage() for each in caplog.records] == [
        f"step {step}, 35.1 steps/s, 2 ranks{left}" for step in (30, 90, 150)
    ]


@pytest.mark.parametrize(
    ("seconds", "words"), [(0, "0 s"), (99, "99 s"), (100, "2 min"), (6000, "1.7 h"), (172800, "2.0 days")]
)
def test_durations_are_in_the_unit_that_suits_them(seconds: float, words: str) -> None:
    assert duration_words(seconds) == words
