"""How far the training is, in the log of a run whose script says little itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from elastic_runtime.launcher.record.output import FEW_LINES, PROGRESS_INTERVAL, ProgressLines


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

    @property
    def progress(self) -> tuple[int | None, Mapping[str, float], float | None, int]:
        return self.step, self.metrics, 35.123, self.ranks


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
