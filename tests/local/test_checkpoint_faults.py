"""Checkpoints under faults: a store in trouble, a full disk, damaged and half-written ones, two owners at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import boto3
import psutil
import pytest

from elastic_runtime.checkpoint import open_store
from elastic_runtime.checkpoint.checkpoints import StoredCheckpoint, opened_checkpoint
from elastic_runtime.spec import CheckpointSpec, RecoverySpec
from elastic_runtime.status import EventKind, FailureKind, Phase, Status
from elastic_runtime.torch import load_checkpoint
from tests.faulty_proxy import Fault, Hold, Refuse, Request, matching
from tests.local.conftest import S3, Start
from tests.local.harness import ScriptedRun
from tests.paced import Script, Undisturbed, sizes_of, until

pytestmark = pytest.mark.timeout(180)

BALLAST = "3"
"""Megabytes in each checkpoint."""
WORLDS = (EventKind.STARTED, EventKind.SCALED, EventKind.SUSPENDED, EventKind.RESUMED, EventKind.RESTARTED,
          EventKind.NOTICE, EventKind.LOST, EventKind.RANK_FAILED, EventKind.FINISHED)  # fmt: skip
"""Every kind of event but those of checkpoints, and of workers that leave when all is over."""


def checkpoints(status: Status) -> list[str]:
    """``10`` for a checkpoint of step 10, ``-10`` for one that failed, each step once in a row."""
    steps: list[str] = []
    for event in status.events:
        if event.kind in (EventKind.CHECKPOINT, EventKind.HANDOVER):
            step, failed, _ = event.message.removeprefix("durable checkpoint of step ").partition(" FAILED")
            word = f"-{step}" if failed else step.partition(" ")[0]
            steps += [word] if steps[-1:] != [word] else []
    return steps


def until_checkpoint(run: ScriptedRun, step: int) -> Status:
    return run.until_status(lambda status: status.checkpoint and status.checkpoint.step == step, f"checkpoint {step}")


def until_failed(run: ScriptedRun, step: int) -> None:
    run.until_status(lambda status: f"-{step}" in checkpoints(status), f"checkpoint {step} has failed")


def assert_as_undisturbed(run: ScriptedRun, status: Status, undisturbed: Undisturbed) -> None:
    """Every step once, the same weights, and the last checkpoint holds them."""
    assert status.phase is Phase.SUCCEEDED, run.report("no success")
    assert set(run.ledger().steps().items()) == {(step, 1) for step in range(1, 71)}
    undisturbed.assert_same(run)
    assert status.checkpoint is not None
    assert status.checkpoint.step == 70
    model = load_checkpoint(status.checkpoint.uri)["model"]
    assert [float(w) for tensor in model.values() for w in tensor.flatten()] == run.weights()


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
        if "ballast.pt" not in request.path or request.method != "PUT":
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


def flip_file(uri: str, part: str) -> None:
    path = Path(uri.removeprefix("file://")) / part
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate_file(uri: str, part: str) -> None:
    path = Path(uri.removeprefix("file://")) / part
    os.truncate(path, path.stat().st_size // 2)


def flip_object(uri: str, part: str) -> None:
    bucket, _, key = f"{uri}/{part}".removeprefix("s3://").partition("/")
    client = boto3.client("s3")
    content = bytearray(client.get_object(Bucket=bucket, Key=key)["Body"].read())
    content[len(content) // 2] ^= 1
    client.put_object(Bucket=bucket, Key=key, Body=bytes(content))
    client.close()


def stop_ranks(run: ScriptedRun) -> list[int]:
    """As they stand, in the middle of whatever they do; their pids."""
    pids = [run.rank_pid(rank) for rank in range(run.status().world_size)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
        until(lambda pid=pid: psutil.Process(pid).status() == psutil.STATUS_STOPPED, "it has stopped")
    return pids


def published(uri: str) -> list[StoredCheckpoint]:
    """The earliest first."""
    store = open_store(uri)
    found = []
    for name in store.names():
        with opened_checkpoint(f"{uri}/{name}") as stored:
            found.append(stored)
    store.close()
    return sorted(found, key=lambda each: (each.manifest.step, each.name))  # of one step, names go by time


def assert_went_on_from(run: ScriptedRun, status: Status, newest: StoredCheckpoint, reached: int) -> None:
    """All ranks were killed at step ``reached``, and what came after the checkpoint was done again, once."""
    assert status.phase is Phase.SUCCEEDED, run.report("no success")
    assert sizes_of(status) == [2, 0, 2, 0]
    resumed = [event.message for event in status.events if event.kind is EventKind.RESUMED]
    step = newest.manifest.step
    assert f"from the durable checkpoint of step {step} at {newest.uri}" in resumed
    again = dict.fromkeys(range(step + 1, reached + 1), 2)
    assert dict(run.ledger().steps()) == dict.fromkeys(range(1, 71), 1) | again


@pytest.mark.parametrize(("kind", "damage"), [("file", flip_file), ("file", truncate_file), ("s3", flip_object)])
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(
    start: Start, s3: S3, tmp_path: Path, undisturbed: Undisturbed, kind: str, damage: Callable[[str, str], None]
) -> None:
    uri = s3.uri if kind == "s3" else (tmp_path / "checkpoints").as_uri()
    spec = CheckpointSpec(uri, every=0.3, keep=50)
    script = Script("exact.py", holds=(20, 30))
    run = start(script, (2, 2, 2), checkpoint=spec, environment=s3.environment, recovery=RecoverySpec(backoff=0.1))
    for step in (20, 30):
        run.at(step)
        until_checkpoint(run, step)
        run.go(20)
    killed = stop_ranks(run)
    found = published(uri)
    damaged = [each.uri for each in found if each.manifest.step == 30]
    newest = max((each for each in found if each.manifest.step < 30), key=lambda each: each.name)
    for each in damaged:
        damage(each, "model.pt")
    for pid in killed:
        os.kill(pid, signal.SIGKILL)

    status = run.finish()

    assert_went_on_from(run, status, newest, reached=30)
    skipped = [event.message for event in status.events if event.kind is EventKind.CHECKPOINT_SKIPPED]
    assert {message.split(" is not used: its part model.pt ")[0] for message in skipped} == set(damaged)
    assert len(skipped) == len(damaged)
    undisturbed.assert_same(run)


@pytest.mark.parametrize("kind", ["file", "s3"])
def test_ranks_killed_in_the_middle_of_a_checkpoint_go_on_from_the_one_before(
    start: Start, s3: S3, tmp_path: Path, undisturbed: Undisturbed, kind: str
) -> None:
    folder = tmp_path / "checkpoints"
    uri = s3.uri if kind == "s3" else folder.as_uri()
    script = Script("exact.py", ("100" if kind == "file" else BALLAST,), holds=(20, 30))
    run = start(
        script, (2, 2, 2), checkpoint=CheckpointSpec(uri, every=0.0), environment=s3.environment,
        recovery=RecoverySpec(backoff=0.1),
    )  # fmt: skip
    run.at(20)
    until_checkpoint(run, 20)
    go_on, held = threading.Event(), threading.Event()

    def half_way(request: Request) -> Fault:
        if request.method == "PUT" and "ballast.pt" in request.path:
            held.set()
            return Hold(go_on)
        return None

    s3.proxy.fault = half_way
    run.go(20)
    run.at(30)

    def stopped_half_way() -> list[int]:
        pids = stop_ranks(run)
        if held.is_set() if kind == "s3" else any(folder.glob(".draft-*/ballast.pt")):
            return pids
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        return []

    killed = run.until(stopped_half_way, "a checkpoint is half written")
    before = published(uri)
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    go_on.set()

    status = run.finish()

    assert_went_on_from(run, status, before[-1], reached=30)
    assert run.events(EventKind.CHECKPOINT_SKIPPED) == []
    assert status.checkpoint is not None
    assert status.checkpoint.step == 70
    undisturbed.assert_same(run)


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
    s3.proxy.fault = lambda request: None
    run.until_status(lambda status: run.events(EventKind.HANDOVER), "a handover")

    status = run.finish()

    assert_as_undisturbed(run, status, undisturbed)
    assert run.events(*WORLDS)[1:] == [f"notice {leaving}", "scaled 1", "scaled 2", "finished"]
    seen = checkpoints(status)
    assert seen[0] == "-20"
    assert "40" in seen
    assert seen[-1] == "70"


@pytest.mark.parametrize("kind", ["file", "s3"])
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
