"""Real runs with scripted events: the launcher as a process of its own, a training that stands where it is told to.

No test sleeps. A script holds at a given step (see ``scripts/pace.py``); the test makes something happen, awaits what
must follow in the run's status document, and lets the training go on. So which step saw which world is decided by the
test, not by the machine's load.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import psutil

from elastic_runtime.clock import utc_now
from elastic_runtime.errors import RunNotFound
from elastic_runtime.rundir import ReclaimNotice, RunDir
from elastic_runtime.spec import RunSpec, WorkersSpec
from elastic_runtime.status import EventKind, Phase, Status, WorkerStatus

T = TypeVar("T")

SCRIPTS = Path(__file__).parent / "scripts"

PATIENCE = 60.0
"""Seconds for anything to happen, on a machine with other things to do."""
LOOK = 0.02
"""Seconds between two looks."""


def until(condition: Callable[[], T | None], what: str | Callable[[], str], patience: float = PATIENCE) -> T:
    """What ``condition`` returns, as soon as that is something."""
    deadline = time.monotonic() + patience
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"after {patience:.0f} s still not: {what if isinstance(what, str) else what()}")
        time.sleep(LOOK)
    return found


@dataclass(frozen=True)
class Script:
    """A training script of this folder, and how it is to behave."""

    name: str
    arguments: tuple[str, ...] = ()
    epochs: int = 10
    commit_every: int = 1
    holds: tuple[int, ...] = ()
    freezes: tuple[int, ...] = ()
    step_seconds: float = 0.0
    doors: dict[str, str] = field(default_factory=dict)

    @property
    def command(self) -> tuple[str, ...]:
        return ("python", str(SCRIPTS / self.name), *self.arguments)

    def pace(self, folder: Path) -> str:
        """The pace of ``scripts/pace.py``."""
        return json.dumps(
            {
                "folder": str(folder),
                "epochs": self.epochs,
                "commit_every": self.commit_every,
                "holds": self.holds,
                "freezes": self.freezes,
                "step_seconds": self.step_seconds,
                "doors": self.doors,
            }
        )


class ScriptedRun:
    """One run, from its folder down to its last process.

    Args:
        base: an empty folder.
        script: what the ranks run.
        workers: minimum, start and maximum.
        command: instead of the script's own.
        spec: further fields of the RunSpec.
    """

    def __init__(
        self,
        base: Path,
        script: Script,
        workers: tuple[int, int, int] = (1, 2, 4),
        command: Sequence[str] | None = None,
        **spec: Any,
    ) -> None:
        self.base, self.folder, self.script = base, RunDir(base / "run"), script
        for name in ("notes", "at", "go"):
            (base / name).mkdir(parents=True)
        minimum, start, maximum = workers
        environment = {"PACE": script.pace(base), "OMP_NUM_THREADS": "1", **spec.pop("environment", {})}
        self.spec = RunSpec(
            name="scripted",
            uid=base.name,
            command=tuple(command or script.command),
            workers=WorkersSpec(minimum, start, maximum),
            environment=environment,
            **spec,
        )
        self._launcher: subprocess.Popen[bytes] | None = None

    # Life

    def start(self) -> ScriptedRun:
        """Lay it down, and start its launcher as the local cluster does."""
        self.folder.create(self.spec, owner="test")
        with self.folder.log.open("ab") as log:
            self._launcher = subprocess.Popen(
                [sys.executable, "-m", "elastic_runtime.launcher", str(self.folder.path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self

    @property
    def launcher(self) -> subprocess.Popen[bytes]:
        assert self._launcher is not None, "not started"
        return self._launcher

    def finish(self) -> Status:
        """End every hold, await the launcher's end, and return the final status."""
        for step in (*self.script.holds, *self.script.freezes):
            self.go(step)
        return self.end()

    def end(self, patience: float = PATIENCE) -> Status:
        """Await the launcher's end; nothing may be left then."""
        self.until(lambda: self.launcher.poll() is not None, "the launcher has ended", patience, alive=False)
        status = self.status()
        assert status.phase.final, self.report("the launcher has ended without a final status")
        assert self.launcher.returncode == (0 if status.phase is Phase.SUCCEEDED else 1), self.report("exit status")
        self.assert_nothing_left()
        return status

    def close(self) -> None:
        """Whatever has become of the test: leave nothing behind."""
        if self._launcher is not None and self._launcher.poll() is None:
            self._launcher.kill()
        if self._launcher is not None:
            self._launcher.wait()
        for process in self.processes():
            process.kill()

    # Looking

    def status(self) -> Status:
        """As written last; fails when there is none yet."""
        status = self.folder.read_status()
        assert status is not None
        return status

    def until(
        self, condition: Callable[[], T | None], what: str, patience: float = PATIENCE, *, alive: bool = True
    ) -> T:
        """Await something; fails at once, with the log, when the launcher has ended instead."""

        def look() -> T | None:
            ended = alive and self.launcher.poll() is not None
            found = condition()
            assert found or not ended, self.report(f"the launcher has ended, before: {what}")
            return found

        return until(look, lambda: self.report(what), patience)

    def until_status(self, wanted: Callable[[Status], object], what: str, patience: float = PATIENCE) -> Status:
        """Await a status that is as wanted."""

        def look() -> Status | None:
            status = self.folder.read_status()
            return self.status() if status is not None and wanted(status) else None

        return self.until(look, what, patience)

    def worlds(self, *sizes: int) -> Status:
        """Await that the history of world sizes is exactly this; fails as soon as it cannot be any more."""

        def wanted(status: Status) -> bool:
            seen = sizes_of(status)
            assert seen == list(sizes)[: len(seen)], self.report(f"worlds {seen}, wanted {list(sizes)}")
            return len(seen) == len(sizes)

        return self.until_status(wanted, f"worlds {list(sizes)}")

    def events(self, *kinds: EventKind) -> list[str]:
        """What happened, in order, of these kinds only: ``scaled 3``, ``left worker-1``, …"""
        return [
            " ".join(str(part) for part in (event.kind, event.world_size, event.worker) if part is not None)
            for event in self.status().events
            if event.kind in kinds
        ]

    def worker(self, rank: int) -> WorkerStatus:
        """The worker on which that rank trains."""
        return next(worker for worker in self.status().workers if rank in worker.ranks)

    def rank_pid(self, rank: int) -> int:
        """Process id of that rank."""
        return self.worker(rank).pids[1 + self.worker(rank).ranks.index(rank)]

    def agent_pid(self, worker: str) -> int:
        """Process id of that worker's agent, as soon as the status knows it."""
        status = self.until_status(lambda status: worker in {each.name for each in status.workers}, f"{worker} is here")
        return next(each.pids[0] for each in status.workers if each.name == worker)

    def log(self) -> str:
        """Everything."""
        return self.folder.log.read_text(encoding="utf-8")

    def report(self, what: str) -> str:
        """For a failing test."""
        try:
            status = self.folder.read_status()
        except RunNotFound:
            return f"{what}; the run's folder is gone"
        short = status and (status.phase, status.reason, sizes_of(status), [str(event.kind) for event in status.events])
        return f"{what}\nstatus: {short}\nlog:\n{self.log()[-8000:]}"

    # Making things happen

    def at(self, step: int | str) -> None:
        """Await that the training stands at this step, or a worker at its door."""
        self.until((self.base / "at" / str(step)).exists, f"training stands at {step}")

    def go(self, step: int | str) -> None:
        """End the hold at this step, or open that worker's door."""
        (self.base / "go" / str(step)).touch()

    def resize(self, workers: int) -> None:
        """Ask for so many."""
        self.folder.write_size(workers)

    def reclaim(self, worker: str, seconds: float = 30.0) -> None:
        """Give a worker its notice."""
        self.folder.write_notice(worker, ReclaimNotice("file", utc_now() + timedelta(seconds=seconds)))

    # The ranks' own notes

    def notes(self) -> list[dict[str, Any]]:
        """Of all ranks; in order within each."""
        files = sorted((self.base / "notes").iterdir())
        return [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]

    def ledger(self) -> Ledger:
        """What was trained on."""
        return Ledger([note for note in self.notes() if "step" in note])

    def weights(self) -> list[float]:
        """At the end, the same on every rank."""
        found = [note["weights"] for note in self.notes() if "weights" in note]
        assert found
        assert all(weights == found[0] for weights in found), "the ranks ended with different weights"
        return list(found[0])

    # Afterwards

    def processes(self) -> list[psutil.Process]:
        """Every living process that belongs to this run, by its command line, its environment, or the status."""
        mark = os.fsencode(str(self.base))
        return [process for process in psutil.process_iter() if self._is_ours(process, mark)]

    def _is_ours(self, process: psutil.Process, mark: bytes) -> bool:
        try:
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                return False
            places = [Path(f"/proc/{process.pid}/{name}").read_bytes() for name in ("cmdline", "environ")]
        except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError, PermissionError):
            return False
        return any(mark in place for place in places)

    def assert_no_process(self, patience: float = 0.0) -> None:
        """No process is left, nor any socket of one."""
        until(lambda: not self.processes(), lambda: f"no process left, but {self.processes()}", patience)

    def assert_nothing_left(self) -> None:
        """No process, no key."""
        self.assert_no_process()
        assert not list(self.base.rglob("*.key")), "a private key is left"


@dataclass(frozen=True)
class Ledger:
    """What every rank trained on, step by step."""

    notes: list[dict[str, Any]]

    def steps(self) -> Counter[int]:
        """Step to how often the world did it."""
        return Counter(note["step"] for note in self.notes if note["rank"] == 0)

    def sizes(self) -> dict[int, int]:
        """Step to world size."""
        return {note["step"]: note["size"] for note in self.notes}

    def losses(self) -> dict[int, float]:
        """Step to loss of the global batch; if a step was done again, it had the same again."""
        found: dict[int, float] = {}
        for note in self.notes:
            assert abs(found.setdefault(note["step"], note["loss"]) - note["loss"]) <= 1e-5 * abs(note["loss"])
        return found

    def samples(self, epoch: int) -> Counter[int]:
        """Sample to how often it was trained on in that epoch."""
        return Counter(sample for note in self.notes if note["epoch"] == epoch for sample in note["samples"])

    def epochs(self) -> range:
        return range(1 + max(note["epoch"] for note in self.notes))


def sizes_of(status: Status) -> list[int]:
    """World sizes, in the order of the worlds."""
    return [world.size for world in status.history]
