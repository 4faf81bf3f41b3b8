"""From a reclaim notice to the durable checkpoint, and to the worker's leaving: rounds in one training of two workers.

It is always the worker of rank 0 that is taken: whoever writes the checkpoint has to leave, too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TypeVar

from benchmarks.harness.processes import end_descendants
from benchmarks.harness.records import RecordReader, change_after
from benchmarks.harness.sides import RoundFailed, environment
from elastic_runtime.clock import utc_now
from elastic_runtime.run.rundir import ReclaimNotice, RunDir
from elastic_runtime.run.spec import CheckpointSpec, RunSpec, WorkersSpec
from elastic_runtime.run.status import EventKind, Status

TRAINING = Path(__file__).resolve().parent / "training.py"
WORKERS = 2
SETTLING = 2.0
"""Seconds of undisturbed training before a notice."""
ROUND_TIMEOUT = 120.0
"""Seconds for anything."""
LOOK = 0.02
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Handover:
    """One round. Times in seconds after the notice was written."""

    deadline: float
    """Given with the notice."""
    durable: float
    """The launcher has heard that the checkpoint is published."""
    left: float
    """The worker's agent has ended."""
    resumed: float
    """The world without that worker, or with its replacement, has done its first step."""
    steps_lost: int


def handovers(
    folder: Path,
    megabytes: int,
    store: str,
    deadlines: Sequence[float],
    more: Mapping[str, str],
    tell: Callable[[Handover], None],
    missed: Callable[[str], None],
) -> None:
    """Train, and give a notice of each of these deadlines in turn.

    Args:
        folder: empty.
        megabytes: of the model.
        store: URI of the checkpoint store.
        deadlines: seconds of each round's notice.
        more: environment of the ranks.
        tell: called with each round.
        missed: called with why, where the worker was gone before there was a checkpoint.

    Raises:
        RoundFailed: something did not come.
    """
    rounds = _Rounds(folder, megabytes, store, more)
    try:
        for deadline in deadlines:
            handover = rounds.one(deadline)
            if handover is None:
                missed(f"no durable checkpoint within the {deadline:.0f} s of a notice; see {folder}")
            else:
                tell(handover)
        rounds.finish()
    finally:
        end_descendants()


class _Rounds:
    def __init__(self, folder: Path, megabytes: int, store: str, more: Mapping[str, str]) -> None:
        self._folder = folder
        self._stop = folder / "stop"
        records = folder / "records"
        records.mkdir(parents=True)
        self._reader = RecordReader(records)
        self._run = RunDir(folder / "run")
        arguments = ("--records", str(records), "--stop", str(self._stop), "--megabytes", str(megabytes))
        root = os.fspath(TRAINING.parent.parent.parent)
        self._run.create(
            RunSpec(
                name="benchmark",
                uid=uuid.uuid4().hex,
                command=("python", str(TRAINING), *arguments),
                workers=WorkersSpec(minimum=1, start=WORKERS, maximum=WORKERS),
                environment={**more, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])},
                checkpoint=CheckpointSpec(store, every=24 * 3600.0, keep=1),
            ),
            owner="benchmark",
        )
        with self._run.log.open("ab") as log:
            self._launcher = subprocess.Popen(
                [sys.executable, "-m", "elastic_runtime.launcher", str(self._run.path)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment(), start_new_session=True,
            )  # fmt: skip

    def one(self, deadline: float) -> Handover | None:
        """Wait until all is well, and give rank 0's worker its notice. None: it was gone before a checkpoint was."""
        status = self._until("two ranks train", self._all_well)
        worker = next(each.name for each in status.workers if 0 in each.ranks)
        begin = time.time()
        self._run.write_notice(worker, ReclaimNotice("benchmark", utc_now() + timedelta(seconds=deadline)))

        def gone() -> tuple[datetime | None, datetime] | None:
            events = self._status().events
            written = [event.time for event in events if event.kind is EventKind.HANDOVER]
            durable = [each for each in written if each.timestamp() >= begin]  # A status has the newest events alone.
            ends = (EventKind.LEFT, EventKind.LOST)
            left = [event.time for event in events if event.kind in ends and event.worker == worker]
            return (durable[0] if durable else None, left[0]) if left else None

        durable, left = self._until(f"{worker} has left", gone)
        if durable is None:
            return None
        change = self._until("the next world steps", lambda: change_after(self._reader.refresh(), begin))
        return Handover(
            deadline,
            durable.timestamp() - begin,
            left.timestamp() - begin,
            change.resumed - begin,
            change.steps_lost,
        )

    def finish(self) -> None:
        """End the training."""
        last = max((step.step for step in self._reader.refresh()), default=0)
        beside = self._stop.with_suffix(".new")
        beside.write_text(str(last + 50))
        os.replace(beside, self._stop)
        self._until("the launcher has ended", lambda: self._launcher.poll() is not None or None, alive=False)

    def _all_well(self) -> Status | None:
        """A status of two ranks that have trained undisturbed for a while."""
        status = self._status()
        latest = self._reader.refresh()[-1:]
        if status.world_size != WORKERS or not status.history or not latest:
            return None
        moment = max(status.history[-1].time, *(event.time for event in status.events))
        steps = {step.rank for step in self._reader.steps if step.time > moment.timestamp() and step.size == WORKERS}
        quiet = (utc_now() - moment).total_seconds() > SETTLING
        return status if quiet and len(steps) == WORKERS and len(self._ranks(status)) == WORKERS else None

    @staticmethod
    def _ranks(status: Status) -> set[int]:
        return {rank for worker in status.workers for rank in worker.ranks}

    def _status(self) -> Status:
        status = self._run.read_status()
        if status is None:
            raise RoundFailed("no status yet")
        return status

    def _until(self, what: str, look: Callable[[], T | None], *, alive: bool = True) -> T:
        deadline = time.monotonic() + ROUND_TIMEOUT
        while True:
            over = self._launcher.poll()
            try:
                if (found := look()) is not None:
                    return found
            except RoundFailed:  # of the first moments
                if over is not None:
                    raise
            if alive and over is not None:
                raise RoundFailed(f"the launcher ended with {over}, before: {what}; see {self._folder}")
            if time.monotonic() > deadline:
                raise RoundFailed(f"not within {ROUND_TIMEOUT:.0f} s: {what}; see {self._folder}")
            time.sleep(LOOK)
