"""Lines of a run as entries of its task's log: several in one, where Airflow's log takes them."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

import pytest
import structlog
from structlog.testing import capture_logs

from elastic_runtime.run.spec import RunSpec
from elastic_training.clusters.fake import FakeCluster
from elastic_training.concurrency.bridge import run
from elastic_training.following.follow import MAX_LINES, MAX_SIZE, Follower, Source, joined
from tests.unit.provider.virtual_time import run_virtually

NOON = datetime(2026, 11, 27, 12, tzinfo=UTC)
AT = NOON.strftime("%Y-%m-%dT%H:%M:%S.000Z")
LONG_AGO = "2026-11-27T03:00:00.000Z"
OUT, ERR = (f"{AT} worker-0 [0]<{stream}>: " for stream in ("stdout", "stderr"))


def told(*lines: str, ranks: tuple[int, ...] | None = None) -> list[tuple[str, str]]:
    """Level and text of each entry in Airflow 3's log."""
    cluster = FakeCluster(poll=1)
    ref = run(cluster.claim(RunSpec(name="run", uid="1", command=("python", "train.py")), "try 1")).ref
    cluster.script(lambda: cluster.write_log("run", *lines), lambda: cluster.succeed("run"))
    with capture_logs() as captured:
        follower = Follower(cluster, ref, "try 1", structlog.get_logger(), ranks=ranks, now=lambda: NOON)
        run_virtually(follower.follow())
    found = [(each["log_level"], each["event"]) for each in captured]
    return [each for each in found if each[1] != "the launcher has started"]


def test_lines_of_one_source_and_level_that_come_together_are_one_entry() -> None:
    assert told(f"{OUT}one", f"{OUT}two with 100%", f"{ERR}odd", f"{ERR}odder", f"{OUT}three") == [
        ("info", "worker-0 [0]<stdout>: one\nworker-0 [0]<stdout>: two with 100%"),
        ("warning", "worker-0 [0]<stderr>: odd\nworker-0 [0]<stderr>: odder"),
        ("info", "worker-0 [0]<stdout>: three"),
    ]


def test_levels_of_one_source_are_not_mixed() -> None:
    lines = [f"{AT} {level} launcher: x" for level in ("INFO", "INFO", "ERROR", "INFO")]
    assert told(*lines) == [("info", "x\nx"), ("error", "x"), ("info", "x")]


def test_each_line_that_is_late_keeps_its_own_time() -> None:
    later = (NOON - timedelta(seconds=20)).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    assert told(f"{LONG_AGO} INFO launcher: a", f"{later} INFO launcher: b", f"{AT} INFO launcher: c") == [
        ("info", "(2026-11-27 03:00:00 UTC) a\n(2026-11-27 11:59:40 UTC) b\nc")
    ]


def test_lines_of_other_ranks_between_do_not_part_an_entry() -> None:
    other = OUT.replace("[0]", "[1]")
    assert told(f"{OUT}one", f"{other}left out", f"{OUT}two", ranks=(0,)) == [
        ("info", "worker-0 [0]<stdout>: one\nworker-0 [0]<stdout>: two")
    ]


@pytest.mark.parametrize(("size", "most"), [(10, MAX_LINES), (1000, MAX_SIZE // 1000), (MAX_SIZE + 1, 1)])
def test_an_entry_is_bounded(size: int, most: int) -> None:
    lines = [f"{number:04}{'x' * (size - 4)}" for number in range(2 * most + 1)]
    texts = [text for _, _, text in joined((Source.STDOUT, logging.INFO, line) for line in lines)]
    assert [text.count("\n") + 1 for text in texts] == [most, most, 1]
    assert "\n".join(texts).split("\n") == lines


def test_nothing_is_no_entry() -> None:
    assert not list(joined([]))
    assert list(joined([(Source.OTHER, logging.INFO, "")])) == [(Source.OTHER, logging.INFO, "")]
