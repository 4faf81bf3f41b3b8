"""Training that goes at a test's pace, wherever its ranks run: it stands where it is told to, and notes what it did.

No test sleeps. A script holds at a given step (see ``tests/local/scripts/pace.py``); the test makes something happen,
awaits what must follow in the run's status document, and lets the training go on. So which step saw which world is
decided by the test, not by the machine's load.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import isclose
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

from elastic_runtime.run.status import EventKind, Status, WorkerState, WorkerStatus

T = TypeVar("T")

SCRIPTS = Path(__file__).parent / "local" / "scripts"

CONDITION_TIMEOUT = 120.0
"""Seconds for anything to happen, on a machine with other things to do."""
LOOK = 0.02
"""Seconds between two looks."""

SAME = 1e-9
"""Relative difference up to which two numbers of ``exact.py``, which counts with 64 bits, are the same."""


def until(
    condition: Callable[[], T | None],
    what: str | Callable[[], str],
    max_wait: float = CONDITION_TIMEOUT,
    pause: float = LOOK,
) -> T:
    """What ``condition`` returns, as soon as that is something; looked at every ``pause`` seconds."""
    deadline = time.monotonic() + max_wait
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"after {max_wait:.0f} s still not: {what if isinstance(what, str) else what()}")
        time.sleep(pause)
    return found


def has_ended(pid: int) -> bool:
    """Whether a process is over: after the last word of it, that takes the kernel a moment."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@dataclass(frozen=True)
class Script:
    """A training script of ``tests/local/scripts``, and how it is to behave."""

    name: str
    arguments: tuple[str, ...] = ()
    epochs: int = 10
    commit_every: int = 1
    state_every: int = 1
    holds: tuple[int, ...] = ()
    freezes: tuple[int, ...] = ()
    leaves: tuple[int, ...] = ()
    raises: tuple[int, ...] = ()
    step_seconds: float = 0.0
    slow: dict[str, float] = field(default_factory=dict)
    shared_by: int | None = None
    stand: tuple[str, int, int] | None = None
    uneven: bool = False
    kills: tuple[int, ...] = ()
    zeroes: str = "first"
    doors: dict[str, str] = field(default_factory=dict)

    def command(self, scripts: Path = SCRIPTS) -> tuple[str, ...]:
        """Of a rank, with the scripts in that folder."""
        return ("python", str(scripts / self.name), *self.arguments)

    def pace(self, folder: Path) -> str:
        """The pace of ``scripts/pace.py``."""
        return json.dumps(
            {
                "folder": str(folder),
                "epochs": self.epochs,
                "commit_every": self.commit_every,
                "state_every": self.state_every,
                "holds": self.holds,
                "freezes": self.freezes,
                "leaves": self.leaves,
                "raises": self.raises,
                "step_seconds": self.step_seconds,
                "slow": self.slow,
                "shared_by": self.shared_by,
                "stand": self.stand,
                "uneven": self.uneven,
                "kills": self.kills,
                "zeroes": self.zeroes,
                "doors": self.doors,
            }
        )


@dataclass(frozen=True)
class Lost:
    """A launcher of a run that was killed, and replaced by the next one."""

    status: Status | None
    """Its last."""
    stored: int
    """Step of the newest checkpoint that it or its ranks told of; 0: of none."""
    gone: float
    """When nothing of it lived any more, of the monotonic clock."""


_runs: list[PacedRun] = []
"""Those of the present test."""
LAST_EVENTS = 20


def whole_workers(sizes: Sequence[int], slots: int) -> list[int]:
    """World sizes, but for those in which a newcomer has some of its ranks a moment before the others."""
    return [size for size, later in pairwise([*sizes, 0]) if not (size % slots and later == size + 1)]


def forget_runs() -> None:
    """A new test begins."""
    _runs.clear()


def histories() -> list[str]:
    """For a test that has failed: sizes, reason and last events of each of its runs, as far as they can be read."""
    return [run.history() for run in _runs]


class PacedRun(ABC):
    """One run of a :class:`Script`.

    Args:
        base: an empty folder that its ranks see under the same path.
        script: what the ranks run.
    """

    max_wait = CONDITION_TIMEOUT
    """Seconds for anything to happen."""

    def __init__(self, base: Path, script: Script) -> None:
        self.base, self.script = base, script
        self.lost: list[Lost] = []
        _runs.append(self)
        for name in ("notes", "at", "go"):
            (base / name).mkdir(parents=True)

    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        """Of its ranks."""
        return {"PACE": self.script.pace(self.base), "OMP_NUM_THREADS": "1", **more}

    @abstractmethod
    def look(self) -> Status | None:
        """The status as written last; None: there is none yet, or no run."""

    @abstractmethod
    def log(self) -> str:
        """Everything that the launcher has written."""

    @abstractmethod
    def is_over(self) -> bool:
        """Whether the launcher has ended for good."""

    # Looking

    def status(self) -> Status:
        """As written last; fails when there is none yet."""
        status = self.look()
        assert status is not None
        return status

    def report(self, what: str) -> str:
        """For a failing test."""
        status = self.look()
        if status is None:
            return f"{what}; there is no run, or it has not spoken yet"
        short = (status.phase, status.reason, sizes_of(status), [str(event.kind) for event in status.events])
        return f"{what}\nstatus: {short}\nlog:\n{self.log()[-8000:]}"

    def history(self) -> str:
        """The run as its status tells it, some twenty lines."""
        try:
            status = self.look()
        except Exception as error:  # noqa: BLE001  # whatever keeps it from being read, the test has failed already
            return f"{self.script.name}: cannot be read any more: {error!r}"
        if status is None:
            return f"{self.script.name}: there is no status"
        events = [f"  {each.time:%T.%f} {each.kind}: {each.message}" for each in status.events[-LAST_EVENTS:]]
        first = f"{self.script.name}: worlds {sizes_of(status)}, {status.phase}: {status.reason}"
        return "\n".join([first, *events])

    def until(
        self, condition: Callable[[], T | None], what: str, max_wait: float | None = None, *, alive: bool = True
    ) -> T:
        """Await something; fails at once, with the log, when the launcher has ended instead."""

        def look() -> T | None:
            ended = alive and self.is_over()
            found = condition()
            assert found or not ended, self.report(f"the launcher has ended, before: {what}")
            return found

        return until(look, lambda: self.report(what), max_wait or self.max_wait)

    def until_status(self, wanted: Callable[[Status], object], what: str) -> Status:
        """Await a status that is as wanted."""

        def look() -> Status | None:
            status = self.look()
            return status if status is not None and wanted(status) else None

        return self.until(look, what)

    def worlds(self, *sizes: int) -> Status:
        """Await that the history of world sizes is exactly this; fails as soon as it cannot be any more."""

        def wanted(status: Status) -> bool:
            seen = sizes_of(status)
            assert seen == list(sizes)[: len(seen)], self.report(f"worlds {seen}, wanted {list(sizes)}")
            return len(seen) == len(sizes)

        return self.until_status(wanted, f"worlds {list(sizes)}")

    def trains(self, size: int) -> int:
        """Await that the status says so many ranks train, as it may be behind them; how many worlds it knows then."""
        status = self.until_status(lambda status: status.world_size == size, f"{size} ranks train")
        return len(status.history)

    def events(self, *kinds: EventKind) -> list[str]:
        """What happened, in order, of these kinds only: ``scaled 3``, ``left worker-1``, …"""
        return [
            " ".join(str(part) for part in (event.kind, event.world_size, event.worker) if part is not None)
            for event in self.status().events
            if event.kind in kinds
        ]

    def worker(self, rank: int) -> WorkerStatus:
        """The worker on which that rank trains, once the status says so: it may be behind the ranks' steps."""
        status = self.until_status(lambda status: any(rank in each.ranks for each in status.workers), f"rank {rank}")
        return next(worker for worker in status.workers if rank in worker.ranks)

    def rank_pid(self, rank: int) -> int:
        """Process id of that rank, where it runs."""
        worker = self.worker(rank)
        return worker.pids[1 + worker.ranks.index(rank)]

    # Making things happen

    def at(self, step: int | str) -> None:
        """Await that the training stands at this step, or a worker at its door."""
        self.until((self.base / "at" / str(step)).exists, f"training stands at {step}")

    def go(self, step: int | str) -> None:
        """End the hold at this step, or open that worker's door."""
        (self.base / "go" / str(step)).touch()

    def go_on(self) -> None:
        """End every hold."""
        for step in (*self.script.holds, *self.script.freezes):
            self.go(step)

    # The ranks' own notes

    def notes(self) -> list[dict[str, Any]]:
        """Of all ranks; in order within each."""
        files = sorted((self.base / "notes").iterdir())
        return [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]

    def ledger(self) -> Ledger:
        """What was trained on."""
        return Ledger([note for note in self.notes() if "step" in note])

    def stored(self) -> int:
        """Step of the newest checkpoint that the status tells of, or the ranks for one of their own; 0: of none."""
        status = self.look()
        told = status.checkpoint.step if status and status.checkpoint else 0
        return max([told, *(int(note["saved"]) for note in self.notes() if "saved" in note)])

    def weights(self) -> list[float]:
        """At the end, the same on every rank."""
        found = [note["weights"] for note in self.notes() if "weights" in note]
        assert found
        assert all(weights == found[0] for weights in found), "the ranks ended with different weights"
        return list(found[0])


class ResizedRun(PacedRun):
    """One whose workers the test has in its hands."""

    @abstractmethod
    def resize(self, workers: int) -> None:
        """Ask for so many."""

    @abstractmethod
    def kill_rank(self, rank: int) -> None:
        """By SIGKILL, where it runs."""


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
            assert abs(found.setdefault(note["step"], note["loss"]) - note["loss"]) <= SAME * abs(note["loss"])
        return found

    def samples(self, epoch: int) -> Counter[int]:
        """Sample to how often it was trained on in that epoch."""
        return Counter(sample for note in self.notes if note["epoch"] == epoch for sample in note["samples"])

    def epochs(self) -> range:
        return range(1 + max(note["epoch"] for note in self.notes))


@dataclass(frozen=True)
class Undisturbed:
    """What ``exact.py`` does with two ranks when nothing happens."""

    ledger: Ledger
    weights: list[float]

    @classmethod
    def by(cls, run: PacedRun) -> Undisturbed:
        """This run, which is over."""
        assert run.ledger().sizes() == dict.fromkeys(range(1, 71), 2)
        return cls(run.ledger(), run.weights())

    def assert_same(self, run: PacedRun) -> None:
        """Each step had the same loss of the global batch, and the weights at the end are the same."""
        self.assert_same_losses(run)
        self.assert_same_weights(run)

    def assert_same_losses(self, run: PacedRun, steps: range = range(1, 71)) -> None:
        """Of these steps, and of no others."""
        wanted = {step: loss for step, loss in self.ledger.losses().items() if step in steps}
        seen = run.ledger().losses()
        assert seen.keys() == wanted.keys()
        others = {
            step: (seen[step], loss) for step, loss in wanted.items() if not isclose(seen[step], loss, rel_tol=SAME)
        }
        assert not others, f"steps with another loss: {others}; world sizes: {run.ledger().sizes()}"

    def assert_same_weights(self, run: PacedRun) -> None:
        """At the end."""
        # Relative to the largest: a weight that happens to be near 0 has no digits to compare.
        assert run.weights() == pytest.approx(self.weights, abs=SAME * max(map(abs, self.weights)))


def ready(status: Status) -> list[str]:
    """Names of the workers that train, or could."""
    usable = (WorkerState.READY, WorkerState.TRAINING)
    return [worker.name for worker in status.workers if worker.state in usable]


def sizes_of(status: Status) -> list[int]:
    """World sizes, in the order of the worlds."""
    return [world.size for world in status.history]
