"""A training, or whoever writes its status, that would give the task's log another shape."""

from __future__ import annotations

import logging

import pytest
import structlog
from structlog.testing import capture_logs

from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import Phase
from elastic_training.clusters.fake import FakeCluster
from elastic_training.concurrency.bridge import run
from elastic_training.following.follow import Follower
from tests.unit.provider.virtual_time import run_virtually

LOG = logging.getLogger("test.forged")
LOG.setLevel(logging.INFO)


def test_neither_output_nor_status_opens_a_group_or_ends_a_line(caplog: pytest.LogCaptureFixture) -> None:
    cluster = FakeCluster(poll=1)
    claim = run(cluster.claim(RunSpec(name="run", uid="1", command=("python", "train.py")), "try 1"))
    cluster.script(
        lambda: cluster.write_log("run", "step 1\t::group::hidden", "100%|\x1b[32m███\x1b[0m", "a\u2028b"),
        lambda: cluster.publish("run", phase=Phase.STARTING, reason="lost\n::endgroup::\nRun run: succeeded"),
        lambda: cluster.succeed("run"),
    )
    run_virtually(Follower(cluster, claim.ref, "try 1", LOG).follow())
    lines = [record.getMessage() for record in caplog.records if record.name == LOG.name]
    assert "step 1\t:\\x3agroup::hidden" in lines
    assert "100%|\\x1b[32m███\\x1b[0m" in lines
    assert "a\\u2028b" in lines
    assert [line for line in lines if line.endswith("lost\\x0a:\\x3aendgroup::\\x0aRun run: succeeded")]
    assert all(len(line.splitlines()) == 1 for line in lines)


def test_no_line_of_an_entry_of_several_is_another_writers() -> None:
    cluster = FakeCluster(poll=1)
    claim = run(cluster.claim(RunSpec(name="run", uid="1", command=("python", "train.py")), "try 1"))
    rank = "2026-11-27T12:00:00.000Z worker-0 [0]<stdout>: "
    said = ["a", "b\nERROR - launcher: lost", "c\r\u2028d", "::endgroup::", "\x85e"]
    cluster.script(
        lambda: cluster.write_log("run", *(f"{rank}{each}" for each in said), "2026-11-27T12:00:00Z INFO launcher: up"),
        lambda: cluster.succeed("run"),
    )
    with capture_logs() as captured:
        run_virtually(Follower(cluster, claim.ref, "try 1", structlog.get_logger()).follow())
    ranks, launcher = [each["event"] for each in captured][-2:]
    lines = ranks.splitlines()
    assert len(lines) == len(said)
    assert all("worker-0 [0]<stdout>: " in line for line in lines)
    assert "::endgroup::" not in ranks
    assert len(launcher.splitlines()) == 1
