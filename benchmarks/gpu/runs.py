"""Real runs on the device: one rank with NCCL, several that share it, with resizes, a notice and a SIGKILL.

NCCL refuses two ranks on one GPU of a host. It takes them where each says that it is on a host of its own, and then
sends through sockets, as between machines: so losses over NCCL can be tried on one GPU.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from benchmarks.gpu.machine import Device
from elastic_runtime.run.status import EventKind, Phase, Status
from elastic_runtime.run.status_figures import GpuFigures
from tests.local.harness import ScriptedRun
from tests.paced import Script, Undisturbed, sizes_of
from tests.plain_torchrun import SPEC, sized_noticed_and_lost, through_sizes_a_notice_and_a_loss

EPOCHS = 10
"""Of a run that is compared bit for bit; of 7 steps."""


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


@dataclass(frozen=True, slots=True)
class Way:
    """In which ranks meet."""

    name: str
    """For people."""
    engine: str = "horovod"
    environment: Mapping[str, str] = field(default_factory=dict)
    """Of its ranks, besides the device's."""
    path: tuple[Path, ...] = ()
    """Folders to import from."""

    @property
    def sharded(self) -> bool:
        """Whether each rank has a part of the model."""
        return "SHARDED" in self.environment

    @property
    def exact(self) -> str:
        """The script whose weights are the same to the last bit."""
        return "rich_sharded.py" if self.sharded else "rich.py"


HOROVOD = Way("Horovod over Gloo")
GLOO = {"ELASTIC_TORCH_BACKEND": "gloo"}
_NCCL = {"OWN_HOSTS": "1", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}


def _ways(over: str, environment: Mapping[str, str]) -> tuple[Way, ...]:
    in_place = {**environment, "IN_PLACE": "1"}
    return (
        Way(f"torch over {over}", "torch", environment),
        Way(f"torch in place over {over}", "torch", in_place),
        Way(f"torch sharded over {over}", "torch", {**in_place, "SHARDED": "1"}),
    )


HOROVOD_NCCL = Way("Horovod over NCCL", environment=_NCCL)
GLOO_WAYS, NCCL_WAYS = _ways("Gloo", GLOO), _ways("NCCL", _NCCL)


@contextmanager
def running(
    folder: Path, device: Device, script: Script, workers: tuple[int, int, int], way: Way = Way("Horovod")
) -> Iterator[ScriptedRun]:
    """A run that outlives nothing."""
    environment = {**device.environment, **way.environment}
    run = ScriptedRun(folder, script, workers, path=way.path, environment=environment, engine=way.engine).start()
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


def one_rank(folder: Path, device: Device, same: Undisturbed, way: Way) -> float:
    """Seconds of a run of one rank.

    Raises:
        AssertionError: it failed, or came to something else.
    """
    begin = time.monotonic()
    with running(folder, device, Script("exact.py"), (1, 1, 1), way) as run:
        assert run.end().phase is Phase.SUCCEEDED, run.report("one rank")
        same.assert_same(run)
    return time.monotonic() - begin


def several_ranks(folder: Path, device: Device, same: Undisturbed, way: Way) -> Shared:
    """Two ranks, three, a notice for one, a SIGKILL for another.

    Raises:
        AssertionError: it failed, or came to something else.
    """
    with running(folder, device, Script("exact.py", holds=(10, 20, 30)), (1, 2, 3), way) as run:
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


def restarted(folder: Path, device: Device) -> None:
    """A script for torchrun, through sizes, a notice and a SIGKILL; on a GPU over NCCL.

    Raises:
        AssertionError: it failed, or did other steps.
    """
    folder.mkdir(parents=True)
    plain = sized_noticed_and_lost(folder)
    environment = {**device.environment, **(_NCCL if device.kind == "cuda" else {})}
    run = ScriptedRun(folder, plain.script, (1, 2, 3), environment=environment, **SPEC).start()
    try:
        through_sizes_a_notice_and_a_loss(run, plain, run.reclaim, run.succeed)
    finally:
        run.close()


def exact(folder: Path, device: Device, way: Way) -> int:
    """Digests of the whole state that were compared: of a run with resizes, a notice and a SIGKILL, and of one without.

    Both are on the device. The state has AdamW, an EMA, and parameters in bfloat16 with float32 master weights.

    Raises:
        AssertionError: a run failed, or they differ in a bit.
    """
    with running(folder / "plain", device, Script(way.exact, epochs=EPOCHS), (2, 2, 2), way) as run:
        assert run.end().phase is Phase.SUCCEEDED, run.report("undisturbed")
        wanted, weights = _digests(run), run.weights()
    script = Script(way.exact, epochs=EPOCHS, step_seconds=0.03, holds=(8, 16, 24, 32))
    with running(folder / "disturbed", device, script, (1, 2, 3), way) as run:
        for step, size in ((8, 3), (16, 2)):
            run.at(step)
            run.resize(size)
            run.trains(size)
            run.go(step)
        run.at(24)
        before = len(run.status().history)
        run.reclaim(run.worker(1).name)
        run.until_status(lambda status: len(status.history) > before and status.world_size == 2, "another in its place")
        run.go(24)
        run.at(32)
        before = len(run.status().history)
        run.go(32)
        run.kill_rank(1)
        run.until_status(lambda status: len(status.history) > before and status.world_size > 0, "a world after it")
        assert run.finish().phase is Phase.SUCCEEDED, run.report("disturbed")
        assert run.events(EventKind.RESTARTED, EventKind.SUSPENDED) == [], run.report("a rank alone was lost")
        found = _digests(run)
        assert run.weights() == weights, "weights differ from those of the undisturbed run"
    apart = [step for step, digests in found.items() if digests != wanted[step]]
    assert not apart, f"states differ from those of the undisturbed run after the steps {apart}"
    return sum(map(len, found.values()))


@dataclass(frozen=True, slots=True)
class Lost:
    """What ranks came to that were killed in the middle of their steps."""

    losses: int
    aborted: int
    """Survivors that ended with one."""
    restarts: int
    """Times that nobody had the state any more."""
    is_same: bool
    """Whether the weights at the end are those of an undisturbed run, to the last bit."""


def lost_amid_steps(folder: Path, device: Device, way: Way, losses: int) -> Lost:
    """SIGKILLs at any moment, while the processor runs ahead of the GPU."""
    script = Script("parallel.py", epochs=40, step_seconds=0.01)
    way = replace(way, environment={**way.environment, "LEARNING_RATE": "0.001"})
    with running(folder / "plain", device, replace(script, step_seconds=0.0), (3, 3, 3), way) as run:
        assert run.end().phase is Phase.SUCCEEDED, run.report("undisturbed")
        weights = run.weights()
    with running(folder / "disturbed", device, script, (1, 3, 3), way) as run:
        for number in range(losses):
            run.until_status(lambda status: status.world_size == 3, "three train")
            time.sleep(0.3 + 0.037 * number)  # Whatever the ranks are in the middle of.
            worlds = len(run.status().history)
            run.kill_rank(number % 3)
            run.until_status(partial(_has_lost, run, number + 1, worlds), "others train on")
        assert run.finish().phase is Phase.SUCCEEDED, run.report("disturbed")
        aborted = sum("SIGABRT" in line for line in run.log().splitlines() if "rank_failed:" in line)
        return Lost(losses, aborted, len(run.events(EventKind.RESTARTED)), run.weights() == weights)


def _has_lost(run: ScriptedRun, ranks: int, worlds: int, status: Status) -> bool:
    """Whether so many ranks are lost, and the others are in another world: else the next kills could take them all."""
    return len(run.events(EventKind.RANK_FAILED)) >= ranks and len(status.history) > worlds


def _digests(run: ScriptedRun) -> dict[int, dict[str, str]]:
    """Of each entry of the state, by step; the same on all ranks."""
    found: dict[int, dict[str, str]] = {}
    for note in run.notes():
        if digests := note.get("digests"):
            assert found.setdefault(note["step"], digests) == digests, f"ranks differ after step {note['step']}"
    return found
