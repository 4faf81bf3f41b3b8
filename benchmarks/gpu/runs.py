"""Real runs on the device: one rank with NCCL, several that share it, with a resize, a notice and a SIGKILL."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.machine import Device
from elastic_runtime.status import EventKind, Phase
from elastic_runtime.status_figures import GpuFigures
from tests.local.harness import ScriptedRun
from tests.paced import Script, Undisturbed, sizes_of


@dataclass(frozen=True, slots=True)
class Shared:
    """What several ranks on one device came to."""

    sizes: Sequence[int]
    """Of the worlds."""
    resize: float
    """Seconds from the wish until the larger world trains."""
    notice: float
    """From a notice until the others train on without that worker."""
    loss: float
    """From a SIGKILL until the others, or a newcomer with them, train."""
    gpus: Sequence[GpuFigures]
    """As the status told of rank 0's worker while three ranks trained."""


@contextmanager
def running(
    folder: Path, device: Device, script: Script, workers: tuple[int, int, int], *path: Path
) -> Iterator[ScriptedRun]:
    """A run that outlives nothing."""
    run = ScriptedRun(folder, script, workers, path=path, environment=device.environment).start()
    try:
        yield run
    finally:
        run.close()


def undisturbed(folder: Path) -> Undisturbed:
    """Two ranks on the processor to which nothing happens: what all others must come to."""
    device = Device("cpu", "", 0)
    with running(folder, device, Script("exact.py"), (2, 2, 2)) as run:
        assert run.end().phase is Phase.SUCCEEDED, run.report("undisturbed")
        return Undisturbed.by(run)


def one_rank(folder: Path, device: Device, same: Undisturbed, *path: Path) -> float:
    """Seconds of a run of one rank, with the Horovod of that path.

    Raises:
        AssertionError: it failed, or came to something else.
    """
    begin = time.monotonic()
    with running(folder, device, Script("exact.py"), (1, 1, 1), *path) as run:
        assert run.end().phase is Phase.SUCCEEDED, run.report("one rank")
        same.assert_same(run)
    return time.monotonic() - begin


def several_ranks(folder: Path, device: Device, same: Undisturbed) -> Shared:
    """Two ranks, three, a notice for one, a SIGKILL for another.

    Raises:
        AssertionError: it failed, or came to something else.
    """
    with running(folder, device, Script("exact.py", holds=(10, 20, 30)), (1, 2, 3)) as run:
        run.at(10)
        begin = time.monotonic()
        run.resize(3)
        run.worlds(2, 3)
        resize = time.monotonic() - begin
        gpus = run.worker(0).gpus
        run.go(10)
        run.at(20)
        gpus = run.worker(0).gpus or gpus
        begin, before = time.monotonic(), len(run.status().history)
        run.reclaim(run.worker(2).name)
        run.until_status(lambda status: len(status.history) > before and status.world_size > 0, "a world without it")
        notice = time.monotonic() - begin
        run.until_status(lambda status: status.world_size == 3, "another in its place")
        run.go(20)
        run.at(30)
        begin, before = time.monotonic(), len(run.status().history)
        os.kill(run.rank_pid(1), signal.SIGKILL)
        run.until_status(lambda status: len(status.history) > before and status.world_size > 0, "a world after it")
        loss = time.monotonic() - begin
        status = run.finish()
        assert status.phase is Phase.SUCCEEDED, run.report("several ranks")
        assert run.events(EventKind.RESTARTED, EventKind.SUSPENDED) == []
        same.assert_same(run)
        return Shared(sizes_of(status), resize, notice, loss, gpus)
