"""What the harness needs of a launcher, and how a training under one is started, watched and ended."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self, TypeVar

from benchmarks.harness.processes import end_descendants
from benchmarks.harness.records import RecordReader, Step

TRAINING = Path(__file__).resolve().parent.parent / "training.py"
MAXIMUM = 4
"""Most workers of any training here."""
LOOK = 0.05
"""Seconds between two looks at the records. All figures come from the records' own times, none from this."""
LAST_BREATH = 2.0
"""Seconds after the launcher's end within which its processes have to be gone."""
STEPS_AHEAD = 50
"""The stop file names a step so far ahead, so that no rank has passed it before every rank can read it."""
T = TypeVar("T")


class RoundFailed(Exception):
    """A round did not get where it should; the message says where it stood and where its log is."""


@dataclass(frozen=True, slots=True)
class Job:
    """One training to be launched."""

    folder: Path
    """Empty folder for whatever the side needs; ``log`` in it takes the launcher's output."""
    command: tuple[str, ...]
    """Of one rank."""
    size: int
    """Workers to begin with, one rank each."""


@dataclass(frozen=True, slots=True)
class Launched:
    """A launcher at work."""

    process: subprocess.Popen[bytes]
    resize: Callable[[int], None]
    """Ask for so many workers; returns at once."""


class Side(Protocol):
    """One way to launch an elastic training."""

    name: str
    script: Path
    """What each rank runs."""

    def launch(self, job: Job) -> Launched:
        """Start the launcher."""


def environment() -> dict[str, str]:
    """Of either launcher: this interpreter's folder first in PATH, and one thread a rank as two cores demand."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}


class Training:
    """One training under one side, from its launch to its clean end; a context manager.

    Args:
        side: who launches it.
        folder: empty folder for this training alone.
        size: workers to begin with.
        batches: the script's ``--input``.
    """

    def __init__(self, side: Side, folder: Path, size: int, batches: str = "fixed") -> None:
        self.side = side
        self._folder = folder
        self._stop = folder / "stop"
        records = folder / "records"
        records.mkdir(parents=True)
        self._reader = RecordReader(records)
        arguments = ("--records", str(records), "--stop", str(self._stop), "--input", batches)
        self._job = Job(folder, ("python", str(side.script), *arguments), size)
        self.left_behind = 0
        """Processes still there :data:`LAST_BREATH` after the launcher's end, which had to be ended."""
        self.exit_code: int | None = None

    def __enter__(self) -> Self:
        self.launched = time.time()
        self._launched = self.side.launch(self._job)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.left_behind = end_descendants(LAST_BREATH if error is None else 0.0)

    @property
    def launcher(self) -> int:
        """Its process id."""
        return self._launched.process.pid

    def resize(self, workers: int) -> float:
        """Ask for so many workers; returns when that was, in seconds since the epoch."""
        now = time.time()
        self._launched.resize(workers)
        return now

    def wait_for(self, what: str, look: Callable[[list[Step]], T | None], timeout: float) -> T:
        """Look at all records so far until ``look`` returns something.

        Raises:
            RoundFailed: nothing within ``timeout`` seconds, or the launcher ended.
        """
        deadline = time.monotonic() + timeout
        while True:
            over = self._launched.process.poll()
            if (found := look(self._reader.refresh())) is not None:
                return found
            if over is not None:
                raise self._failed(f"the launcher ended with {over} before {what}")
            if time.monotonic() > deadline:
                raise self._failed(f"no {what} within {timeout:.0f} s")
            time.sleep(LOOK)

    def let_run(self, seconds: float) -> Sequence[Step]:
        """Leave the training alone for so long; returns all records so far. Raises RoundFailed when it ended."""
        try:
            over = self._launched.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return self._reader.refresh()
        raise self._failed(f"the launcher ended with {over} in the middle of training")

    def finish(self, timeout: float = 60.0) -> None:
        """Have the ranks stop at one step, and wait for the launcher to end. Raises RoundFailed when it does not."""
        beside = self._stop.with_suffix(".new")
        beside.write_text(str(_last_step(self._reader.refresh()) + STEPS_AHEAD))
        os.replace(beside, self._stop)
        self.await_end(timeout)

    def await_end(self, timeout: float) -> None:
        """Wait for the launcher to end by itself. Raises RoundFailed when it does not."""
        try:
            self.exit_code = self._launched.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise self._failed(f"the launcher did not end within {timeout:.0f} s of the last step") from None

    def _failed(self, problem: str) -> RoundFailed:
        last = max(self._reader.refresh(), key=lambda step: step.time, default=None)
        where = f"last step {last.step} at size {last.size}" if last else "no step yet"
        return RoundFailed(
            f"{self.side.name}: {problem} ({where}); see runs/{self._folder.parent.name}/{self._folder.name}"
        )


def _last_step(steps: Iterable[Step]) -> int:
    return max((step.step for step in steps), default=0)
