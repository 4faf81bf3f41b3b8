from __future__ import annotations

import io
import logging
from datetime import UTC, datetime

import pytest

from elastic_runtime.launcher.record.output import OutputLog
from elastic_training.clusters.fake import FakeCluster
from elastic_training.following.follow import LogLine, Source, ranks_shown, read_line
from tests.unit.provider.operator_bench import NAME, deferred, operator, trying

NOON = datetime(2026, 11, 21, 12, 0, 0, 5000, tzinfo=UTC)
LAUNCHER = "2026-11-21T12:00:00Z INFO launcher: scaled: world 2 of 3 ranks: worker-0.0.0 [1]<stdout>: x"


def written(rank: int | None, text: str = "loss 0.5", stream: str = "stdout") -> str:
    """As the launcher writes it into the run's log."""
    OutputLog(log := io.StringIO()).write(NOON, "run-worker-x7k2p.r1", rank, stream, [text])
    return log.getvalue().rstrip("\n")


@pytest.mark.parametrize(
    ("ranks", "shown"),
    [(None, [0, 1, 12, None]), ([], []), ([0], [0, None]), ([1, 12], [1, 12, None])],
)
def test_lines_of_other_ranks_are_left_out(ranks: list[int] | None, shown: list[int | None]) -> None:
    for stream in ("stdout", "stderr"):
        assert [each for each in (0, 1, 12, None) if read_line(written(each, stream=stream)).is_shown(ranks)] == shown
    assert read_line(LAUNCHER).is_shown(ranks)


def test_a_rank_cannot_speak_for_another() -> None:
    assert not read_line(written(1, written(0))).is_shown([0])


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_rank_cannot_speak_for_the_launcher(stream: str) -> None:
    read = read_line(written(1, LAUNCHER, stream))
    assert read.source == f"rank.{stream}"
    assert read.text == f"run-worker-x7k2p.r1 [1]<{stream}>: {LAUNCHER}"


@pytest.mark.parametrize(
    "line",
    [
        "",
        "no time launcher: x",
        "2026-11-21T12:00:00Z LOUD launcher: x",
        "2026-11-21T12:00:00Z INFO somebody: x",
        "Traceback (most recent call last):",
    ],
)
def test_what_has_no_shape_of_ours_is_passed_on_as_it_is(line: str) -> None:
    assert read_line(line) == LogLine(Source.OTHER, logging.INFO, line)


def test_a_time_that_is_none_is_no_error() -> None:
    read = read_line("2026-99-99T99:99:99Z INFO launcher: x")
    assert (read.source, read.text, read.time) == (Source.LAUNCHER, "x", None)
    assert read.told_at(NOON) == "x"


def test_what_is_given() -> None:
    assert [ranks_shown("log_ranks", each) for each in (None, 3, (), {2, 0})] == [None, (3,), (), (0, 2)]


@pytest.mark.parametrize("ranks", [None, [1]])
def test_the_tasks_log_has_the_lines_that_are_wanted(
    fake: FakeCluster, capsys: pytest.CaptureFixture[str], ranks: list[int] | None
) -> None:
    fake.script(lambda: fake.write_log(NAME, written(0, "zero"), written(1, "one")), lambda: fake.succeed(NAME))
    operator(log_ranks=ranks).execute({"ti": trying()})
    told = capsys.readouterr().out
    assert ("zero" in told, "one" in told) == (ranks is None, True)


def test_the_trigger_is_told_only_what_differs(fake: FakeCluster) -> None:
    assert deferred(operator(deferrable=True, log_ranks=0), trying()).trigger.serialize()[1]["log_ranks"] == [0]
    assert "log_ranks" not in deferred(operator(deferrable=True), trying(2)).trigger.serialize()[1]
