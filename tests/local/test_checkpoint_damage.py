"""Checkpoints that are damaged, or half written when all ranks are killed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import boto3
import pytest

from elastic_runtime.checkpoint.checkpoints import StoredCheckpoint
from elastic_runtime.run.spec import CheckpointSpec, RecoverySpec
from elastic_runtime.run.status import EventKind, Phase, Status
from tests.faulty_proxy import Fault, Hold, Request
from tests.local.checkpointing import BALLAST, published, until_checkpoint
from tests.local.conftest import S3, Start
from tests.local.harness import ScriptedRun
from tests.paced import Script, Undisturbed, sizes_of, until

pytestmark = pytest.mark.timeout(300)


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


def has_stopped(pid: int) -> bool:
    """Whether all threads of it have: one that is in the middle of writing or renaming stops when that is done."""
    stats = [task.read_text(encoding="utf-8") for task in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)


def stop_ranks(run: ScriptedRun) -> list[int]:
    """As they stand, in the middle of whatever they do; their pids."""
    pids = [run.rank_pid(rank) for rank in range(2)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
        until(lambda pid=pid: has_stopped(pid), "it has stopped")
    return pids


def assert_went_on_from(run: ScriptedRun, status: Status, newest: StoredCheckpoint, reached: int) -> None:
    """All ranks were killed at step ``reached``, and what came after the checkpoint was done again, once."""
    assert status.phase is Phase.SUCCEEDED, run.report("no success")
    assert sizes_of(status) == [2, 0, 2, 0]
    resumed = [event.message for event in status.events if event.kind is EventKind.RESUMED]
    step = newest.manifest.step
    assert f"from the durable checkpoint of step {step} at {newest.uri}" in resumed
    again = dict.fromkeys(range(step + 1, reached + 1), 2)
    assert dict(run.ledger().steps()) == dict.fromkeys(range(1, 71), 1) | again


@pytest.mark.parametrize(
    ("kind", "damage"),
    [pytest.param("file", flip_file, marks=pytest.mark.long), ("file", truncate_file), ("s3", flip_object)],
)
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
        damage(each, "model.safetensors")
    for pid in killed:
        os.kill(pid, signal.SIGKILL)

    status = run.finish()

    assert_went_on_from(run, status, newest, reached=30)
    skipped = [event.message for event in status.events if event.kind is EventKind.CHECKPOINT_SKIPPED]
    assert {message.split(" is not used: its part model.safetensors ")[0] for message in skipped} == set(damaged)
    assert len(skipped) == len(damaged)
    undisturbed.assert_same(run)


@pytest.mark.parametrize("kind", [pytest.param("file", marks=pytest.mark.long), "s3"])
def test_ranks_killed_in_the_middle_of_a_checkpoint_go_on_from_the_one_before(
    start: Start, s3: S3, tmp_path: Path, undisturbed: Undisturbed, kind: str
) -> None:
    folder = tmp_path / "checkpoints"
    uri = s3.uri if kind == "s3" else folder.as_uri()
    script = Script("exact.py", ("32" if kind == "file" else BALLAST,), holds=(20, 30))
    run = start(
        script, (2, 2, 2), checkpoint=CheckpointSpec(uri, every=0.0), environment=s3.environment,
        recovery=RecoverySpec(backoff=0.1),
    )  # fmt: skip
    run.at(20)
    until_checkpoint(run, 20)
    go_on, held = threading.Event(), threading.Event()

    def half_way(request: Request) -> Fault:
        if request.method == "PUT" and "ballast.safetensors" in request.path:
            held.set()
            return Hold(go_on)
        return None

    s3.proxy.fault = half_way
    run.go(20)
    run.at(30)

    def stopped_half_way() -> list[int]:
        pids = stop_ranks(run)
        if held.is_set() if kind == "s3" else any(folder.glob(".draft-*/ballast.safetensors")):
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
