"""Scripts for torchrun that do not cooperate: what happens to them is told, once, in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elastic_runtime.errors import FailureKind
from elastic_runtime.run.spec import RecoverySpec, RestartSpec
from elastic_runtime.run.status import EventKind, Phase
from tests.local.conftest import Start
from tests.local.harness import ScriptedRun
from tests.paced import Script

pytestmark = pytest.mark.timeout(300)

TRAINS = """
dist.init_process_group("gloo")
step = 0
while not (folder / "end").exists():
    step += 1
    report(step=step, loss=1.0)
    (folder / f"in-{size}-{rank}").touch()
    time.sleep(0.02)
"""
HEAD = """
import os, pathlib, signal, sys, threading, time
from datetime import timedelta
import torch, torch.distributed as dist
from elastic_runtime.torch import report
folder = pathlib.Path(__file__).parent
rank, size, local = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
"""


class Uncooperative:
    """A run of such a script, which trains until it is told to end."""

    def __init__(self, start: Start, folder: Path, script: str, workers: tuple[int, int, int], **spec: Any) -> None:
        self.folder = folder
        (folder / "script.py").write_text(HEAD + script)
        command = ("python", str(folder / "script.py"))
        spec = {"restart": RestartSpec(grace=10.0), "recovery": RecoverySpec(backoff=0.2)} | spec
        self.run: ScriptedRun = start(Script("none"), workers, engine="torchrun", command=command, **spec)

    def trains(self, size: int) -> None:
        """Await that each rank of a world of that size has made a step."""
        files = [self.folder / f"in-{size}-{rank}" for rank in range(size)]
        self.run.until(lambda: all(file.exists() for file in files), f"{size} ranks train")

    def warnings(self) -> list[str]:
        return [event.message for event in self.run.status().events if event.kind is EventKind.WARNING]

    def warned(self, count: int) -> list[str]:
        self.run.until(lambda: len(self.warnings()) >= count, f"{count} warnings")
        return self.warnings()

    def succeed(self) -> None:
        (self.folder / "end").touch()
        self.run.succeed()


def test_one_without_a_handler_is_told_so_once_and_that_it_starts_over(start: Start, tmp_path: Path) -> None:
    script = Uncooperative(start, tmp_path, TRAINS, (1, 1, 2))
    script.trains(1)
    script.run.until_status(lambda status: status.metrics, "a step is told")
    script.run.resize(2)
    script.trains(2)
    handler, over = sorted(script.warned(2))
    assert handler.startswith("SIGTERM itself ended rank worker-0.0.0: a script without a handler for it saves nothing")
    assert over.startswith("the script started over: step ")
    (tmp_path / "in-1-0").unlink()
    script.run.resize(1)
    script.trains(1)
    script.warned(3)
    script.succeed()
    told = script.warnings()
    assert [each for each in told if "handler" in each] == [handler]
    assert len([each for each in told if "started over" in each]) == 2


def test_one_that_ignores_the_signal_is_killed_with_a_word_of_its_seconds(start: Start, tmp_path: Path) -> None:
    ignoring = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + TRAINS
    script = Uncooperative(start, tmp_path, ignoring, (1, 1, 2), restart=RestartSpec(grace=1.0))
    script.trains(1)
    script.run.resize(2)
    script.trains(2)
    told = " ".join(script.warned(1))
    script.succeed()
    assert "rank worker-0.0.0 did not end within 1 s of SIGTERM and was killed" in told


def test_a_size_that_the_script_refuses_leads_back_to_the_one_that_worked(start: Start, tmp_path: Path) -> None:
    script = Uncooperative(start, tmp_path, 'assert size % 2 == 0, "an even number of ranks"\n' + TRAINS, (1, 2, 3))
    run = script.run
    for _ in range(2):
        script.trains(2)
        before = len(script.warnings())
        for rank in range(2):
            (tmp_path / f"in-2-{rank}").unlink()
        run.resize(3)  # The second time it is asked for anew.
        run.until(lambda before=before: [each for each in script.warnings()[before:] if "failed" in each], "it is told")
        script.trains(2)
        run.until_status(lambda status: (status.world_size, status.target_size) == (2, 2), "as before")
    refused = [each for each in script.warnings() if "failed" in each]
    assert (
        refused
        == [
            "the script failed in a world of 3 ranks before its first step: AssertionError: an even number of ranks. "
            "The run goes back to 2, which had worked; 3 is tried again when somebody asks for it anew"
        ]
        * 2
    )
    script.succeed()
    assert run.status().rank_failures == 0
    assert run.folder.read_size() == 2


def test_a_rank_that_hangs_in_a_lock_is_the_one_that_is_named(start: Start, tmp_path: Path) -> None:
    deadlock = """
dist.init_process_group("gloo", timeout=timedelta(seconds=8))
dist.all_reduce(torch.ones(1))
def in_a_lock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
if rank == 1:
    in_a_lock()
dist.all_reduce(torch.ones(1))
"""
    run = Uncooperative(start, tmp_path, deadlock, (3, 3, 3)).run
    status = run.end()
    assert (status.phase, status.failure) == (Phase.FAILED, FailureKind.RANK_FAILED)
    first = status.first_failure
    assert first is not None
    assert first.rank == 1
    assert first.message.startswith("was still at work when others gave up waiting for it: File")
    assert first.message.endswith("in in_a_lock")
    assert "still ran and was killed" in status.reason


SAVES = """
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
dist.init_process_group("gloo")
saved = folder / "saved"
step = int(saved.read_text()) if saved.exists() else 0
while True:
    flags = torch.tensor([float(bool(asked)), float((folder / "end").exists())])
    dist.all_reduce(flags)
    if flags.any():
        if rank == 0:
            (folder / "saving").write_text(str(step))
            (folder / "saving").rename(saved)
        dist.barrier()
        sys.exit(0)
    step += 1
    report(step)
    (folder / f"in-{size}-{rank}").touch()
    time.sleep(0.02)
"""


@pytest.mark.shows(engine="torchrun", fault=("notice", "notices"), place="local")
@pytest.mark.parametrize("noticed", [pytest.param(1, marks=pytest.mark.long), 2], ids=["one worker", "all workers"])
def test_a_notice_at_the_minimum_lets_the_ranks_save(start: Start, tmp_path: Path, noticed: int) -> None:
    script = Uncooperative(start, tmp_path, SAVES, (2, 2, 2))  # A checkpoint may take longer than the notice leaves.
    run = script.run
    script.trains(2)
    run.until_status(lambda status: (status.step or 0) > 5 and status.world_size == 2, "steps are told")
    workers = [run.worker(rank).name for rank in range(noticed)]
    for name in workers:
        run.reclaim(name, 9.0)
    run.until((tmp_path / "saved").exists, "the checkpoint")
    run.until_status(lambda status: status.generation == 2 and status.world_size == 2, "the next world")
    script.succeed()
    assert int((tmp_path / "saved").read_text()) > 5
    [suspended] = [event.message for event in run.status().events if event.kind is EventKind.SUSPENDED]
    assert suspended.startswith("the ranks ended as they were asked to")
    assert run.events(EventKind.LOST, EventKind.RANK_FAILED, EventKind.WARNING) == []


def test_who_aborts_for_a_lost_peer_is_no_failure_and_restarts_are_counted_on(start: Start, tmp_path: Path) -> None:
    aborts = """
dist.init_process_group("gloo")
with (folder / f"starts-{rank}").open("a") as file:
    file.write(os.environ["TORCHELASTIC_RESTART_COUNT"])
dist.barrier()
if not (folder / "lost").exists():
    dist.barrier()
    if rank == 1:
        (folder / "lost").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        dist.all_reduce(torch.ones(1))
    except RuntimeError:
        os.abort()  # As NCCL's watchdog does.
dist.barrier()
"""
    run = Uncooperative(start, tmp_path, aborts, (2, 2, 2)).run
    run.succeed()
    assert {(tmp_path / f"starts-{rank}").read_text() for rank in range(2)} == {"01"}
    assert run.status().rank_failures == 1, "the one that was killed"
    assert run.status().starts == 2


def test_what_local_rank_0_writes_is_written_once(start: Start, tmp_path: Path) -> None:
    writes = """
if local == 0:
    with (folder / "snapshot").open("a") as file:
        file.write(f"{os.environ['LOCAL_WORLD_SIZE']}\\n")
"""
    script = Uncooperative(start, tmp_path, writes, (2, 2, 2))
    script.run.succeed()
    assert (tmp_path / "snapshot").read_text() == "2\n"


def test_a_snapshot_that_the_signal_has_torn_is_said_to_be_one(start: Start, tmp_path: Path) -> None:
    writes = """
if (folder / "snapshot").exists():
    torch.load(folder / "snapshot")
torch.save(torch.ones(10_000), folder / "whole")
with (folder / "snapshot").open("wb") as file:
    file.write((folder / "whole").read_bytes()[:5_000])
    file.flush()
    (folder / f"in-{size}-{rank}").touch()
    time.sleep(600)
"""
    script = Uncooperative(start, tmp_path, writes, (1, 1, 2))
    script.trains(1)
    script.run.until_status(lambda status: status.world_size == 1, "the launcher knows")
    script.run.resize(2)
    status = script.run.end()
    assert status.failure is FailureKind.RANK_FAILED
    assert status.reason.endswith("have the script write to a temporary name, and os.replace() it when it is whole")
