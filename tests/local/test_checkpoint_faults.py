"""Checkpoints under faults: a store in trouble, a full disk, damaged and half-written ones, two owners at once."""

from __future__ import annotations

import threading
from pathlib import Path

import psutil
import pytest

from elastic_runtime.errors import FailureKind
from elastic_runtime.run.spec import CheckpointSpec, RecoverySpec
from elastic_runtime.run.status import EventKind, Phase
from tests.faulty_proxy import Fault, Hold, Refuse, Request, matching
from tests.local.checkpointing import (
    BALLAST,
    WORLDS,
    assert_as_undisturbed,
    checkpoints,
    published,
    until_checkpoint,
    until_failed,
)
from tests.local.conftest import S3, Start
from tests.local.harness import ScriptedRun
from tests.paced import Script, Undisturbed, sizes_of

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("fault", [Refuse(500, "InternalError"), Refuse(503, "SlowDown")])
def test_a_store_in_trouble_costs_checkpoints_and_no_step(
    start: Start, s3: S3, undisturbed: Undisturbed, fault: Fault
) -> None:
    script = Script("exact.py", (BALLAST,), holds=(20, 40))
    run = start(script, (2, 2, 2), checkpoint=CheckpointSpec(s3.uri, every=0.5), environment=s3.environment)
    run.at(20)
    until_checkpoint(run, 20)
    s3.proxy.fault = matching(fault)
    run.go(20)
    run.at(40)
    until_failed(run, 40)
    s3.proxy.fault = lambda request: None
    until_checkpoint(run, 40)

    status = run.finish()

    assert_as_undisturbed(run, status, undisturbed)
    assert run.events(*WORLDS) == ["started 2", "finished"]
    seen = checkpoints(status)
    assert seen.index("20") < seen.index("-40") < seen.index("40") < seen.index("70")
    assert seen[-1] == "70"
    assert "said the test" in run.log()


def test_training_does_not_wait_for_a_slow_store(start: Start, s3: S3, undisturbed: Undisturbed) -> None:
    script = Script("exact.py", (BALLAST,), holds=(20, 40))
    go_on, held = threading.Event(), threading.Event()

    def slow(request: Request) -> Fault:
        if "ballast.safetensors" not in request.path or request.method != "PUT":
            return None
        held.set()
        return Hold(go_on)

    run = start(script, (2, 2, 2), checkpoint=CheckpointSpec(s3.uri, every=0.5), environment=s3.environment)
    run.at(20)
    s3.proxy.fault = slow
    assert held.wait(60)
    run.go(20)
    run.at(40)
    assert "40" not in checkpoints(run.status())
    go_on.set()
    until_checkpoint(run, 40)

    status = run.finish()

    assert_as_undisturbed(run, status, undisturbed)
    assert run.events(*WORLDS) == ["started 2", "finished"]


def test_a_full_disk_costs_checkpoints_and_no_step(start: Start, tmp_path: Path, undisturbed: Undisturbed) -> None:
    script = Script("exact.py", (BALLAST,), holds=(20, 40))
    folder = tmp_path / "checkpoints"
    run = start(script, (2, 2, 2), checkpoint=CheckpointSpec(folder.as_uri(), every=0.2))
    run.at(20)
    until_checkpoint(run, 20)
    # While the training stands it commits, so that another one of this step is due soon, however few came before it.
    run.until(lambda: len(list(folder.glob("ckpt-*"))) == 2, "two checkpoints are kept")
    first = psutil.Process(run.rank_pid(0))
    _, most = first.rlimit(psutil.RLIMIT_FSIZE)
    # From now on the kernel refuses to write in the middle of the larger part, as it does on a full disk.
    first.rlimit(psutil.RLIMIT_FSIZE, (1 << 20, most))
    run.go(20)
    run.at(40)
    until_failed(run, 40)
    assert len(list(folder.glob("ckpt-*"))) == 2
    first.rlimit(psutil.RLIMIT_FSIZE, (most, most))
    until_checkpoint(run, 40)

    status = run.finish()

    assert_as_undisturbed(run, status, undisturbed)
    assert run.events(*WORLDS) == ["started 2", "finished"]
    seen = checkpoints(status)
    assert seen.index("20") < seen.index("-40") < seen.index("40") < seen.index("70")
    assert "File too large" in run.log()
    assert not list(folder.glob(".draft-*"))


def test_a_rank_0_that_leaves_ends_its_handover_while_it_exits(start: Start, s3: S3, undisturbed: Undisturbed) -> None:
    script = Script("exact.py", ("40",), holds=(20,))  # three pieces
    checkpoint = CheckpointSpec(s3.uri, every=3600.0)
    run = start(script, (1, 2, 2), checkpoint=checkpoint, environment=s3.environment)
    run.at(20)
    go_on = threading.Event()
    s3.proxy.fault = matching(Hold(go_on), "PUT", "partNumber=1")
    leaving = run.worker(0)
    run.reclaim(leaving.name)
    run.until_status(lambda status: sizes_of(status) != [2], "a world without it")
    assert run.events(EventKind.HANDOVER, EventKind.LEFT) == []
    go_on.set()
    run.until_status(lambda status: run.events(EventKind.LEFT), "it has left")

    status = run.finish()

    assert_as_undisturbed(run, status, undisturbed)
    told = run.events(EventKind.HANDOVER, EventKind.LEFT)
    assert told[: told.index(f"left {leaving.name}") + 1] == [f"handover {leaving.name}", f"left {leaving.name}"]
    assert run.events(EventKind.LOST, EventKind.RANK_FAILED, EventKind.RESTARTED) == []
    assert "Traceback" not in run.log()


def test_a_handover_that_the_store_refuses_is_written_when_it_is_back(
    start: Start, s3: S3, undisturbed: Undisturbed
) -> None:
    script = Script("exact.py", holds=(20, 40))
    run = start(script, (1, 2, 2), checkpoint=CheckpointSpec(s3.uri, every=3600.0), environment=s3.environment)
    run.at(20)
    s3.proxy.fault = matching(Refuse(503, "SlowDown"), "PUT")
    leaving = run.worker(1).name
    run.reclaim(leaving)
    run.worlds(2, 1, 2)
    until_failed(run, 20)
    run.go(20)
    run.at(40)
    until_failed(run, 40)  # One that was begun before would be of an earlier commit.
    s3.proxy.fault = lambda request: None
    run.until_status(lambda status: run.events(EventKind.HANDOVER), "a handover")

    status = run.finish()

    assert_as_undisturbed(run, status, undisturbed)
    assert run.events(*WORLDS)[1:] == [f"notice {leaving}", "scaled 1", "scaled 2", "finished"]
    seen = checkpoints(status)
    assert seen[0] == "-20"
    assert "40" in seen
    assert seen[-1] == "70"


@pytest.mark.parametrize("kind", [pytest.param("file", marks=pytest.mark.long), "s3"])
def test_of_two_owners_the_older_one_publishes_nothing_more_and_fails(
    start: Start, s3: S3, tmp_path: Path, undisturbed: Undisturbed, kind: str
) -> None:
    uri = s3.uri if kind == "s3" else (tmp_path / "checkpoints").as_uri()
    script = Script("exact.py", holds=(20, 30))
    recovery = RecoverySpec(backoff=0.1, rank_failures=2)

    def owner(fence: int) -> ScriptedRun:
        spec = CheckpointSpec(uri, every=0.3, fence=fence)
        return start(script, (1, 1, 1), checkpoint=spec, environment=s3.environment, recovery=recovery)

    old = owner(1)
    old.at(20)
    until_checkpoint(old, 20)
    new = owner(2)
    new.at(20)  # it has claimed the store, and stands where the old one does
    new.until_status(lambda status: new.events(EventKind.RESUMED), "resumed")
    old.go(20)

    failed = old.end()

    assert failed.phase is Phase.FAILED
    assert failed.failure is FailureKind.RANK_FAILED
    assert "belongs to a newer owner: its fence is 2, ours is 1" in failed.reason
    assert "70" not in checkpoints(failed)
    new.go(20)
    new.at(30)
    until_checkpoint(new, 30)
    # One of the old owner's may still be kept: what counts is that none came after it was replaced.
    assert all(each.manifest.step <= 20 for each in published(uri) if each.manifest.fence == 1)

    status = new.finish()

    assert status.phase is Phase.SUCCEEDED, new.report("no success")
    assert [(each.manifest.fence, each.manifest.step) for each in published(uri)][-1] == (2, 70)
    assert sizes_of(status) == [1, 0]
    assert set(new.ledger().steps()) == set(range(21, 71))
    undisturbed.assert_same_weights(new)
