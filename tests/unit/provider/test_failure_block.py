"""The end of a failed task's log: which rank failed first, and why."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from elastic_runtime.errors import FailureKind
from elastic_runtime.run.status_failure import MAX_TRACEBACK, FirstFailure
from elastic_training.clusters.fake import FakeCluster
from elastic_training.clusters.kubernetes.place import KubernetesCluster
from elastic_training.clusters.local import LocalCluster
from elastic_training.exceptions import TrainingFailed
from elastic_training.operators.elastic_training import failure_block
from tests.unit.provider.operator_bench import NAME, operator, trying

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 4, in main\nValueError: no such sample: 4711'
FIRST = FirstFailure(1, "worker-1", "worker-1.0.0", 41, 1, NOON, "ValueError: no such sample: 4711", TRACEBACK)


def test_says_who_when_what_and_where_there_is_more() -> None:
    assert failure_block(FIRST, "kubectl logs worker-1").split("\n") == [
        "Rank 1 on worker-1 failed first at step 41, with code 1, 2026-11-22 12:00:00 UTC:",
        "ValueError: no such sample: 4711",
        "    Traceback (most recent call last):",
        '      File "train.py", line 4, in main',
        "    ValueError: no such sample: 4711",
        "The log of its worker: kubectl logs worker-1",
    ]


def test_of_one_that_was_killed_is_short() -> None:
    killed = replace(FIRST, rank=None, step=None, exit_code=-9, message="ended with SIGKILL", traceback="")
    assert failure_block(killed, "here").split("\n") == [
        "A rank on worker-1 failed first, with SIGKILL, 2026-11-22 12:00:00 UTC:",
        "ended with SIGKILL",
        "The log of its worker: here",
    ]


def test_moves_no_cursor_folds_no_log_and_is_bounded() -> None:
    hostile = "\x1b[2J::group::\r\u2028\u202e"
    first = replace(FIRST, worker=hostile, message=hostile, traceback=f"{hostile}\n" * 100_000)
    block = failure_block(first, hostile)
    assert not set("\x1b\r\u2028\u202e") & set(block)
    assert "::group::" not in block
    assert len(block) < 20 * MAX_TRACEBACK


def test_stands_once_at_the_end_of_the_tasks_log(fake: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    ti, train, told = trying(), operator(), []
    monkeypatch.setattr(train.log, "error", lambda message, *args: told.append(message % args))

    def fail() -> None:
        fake.publish(NAME, first_failure=FIRST)
        fake.fail(NAME, FailureKind.RANK_FAILED, f"all ranks failed; {FIRST.summary}", 1)

    fake.script(fail)
    with pytest.raises(TrainingFailed, match="rank 1 on worker-1 failed first: ValueError"):
        train.execute({"ti": ti})
    assert [text.startswith("Rank 1 on worker-1 failed first at step 41") for text in told] == [True]
    assert ti.pushed["failure"]["first_failure"]["message"] == FIRST.message


def test_the_log_of_a_worker_is_a_path_here_and_a_command_on_kubernetes() -> None:
    assert LocalCluster(Path("/srv/runs"), "python").worker_log(NAME, "worker-1") == (
        f"/srv/runs/{NAME}/log, the lines with worker-1"
    )
    command = KubernetesCluster("kubernetes_default", "ml").worker_log(NAME, f"{NAME}-worker-x7.r2")
    assert command == f"kubectl logs pod/{NAME}-worker-x7 --namespace ml --container worker"
