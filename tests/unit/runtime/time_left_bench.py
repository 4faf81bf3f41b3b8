"""A training on virtual time: scripted sizes, a pace with noise, evaluations; and the estimates of its record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from random import Random

from elastic_runtime.launcher.record.run_record import RunRecord
from elastic_runtime.protocol.rank_link import Progress as Step
from elastic_runtime.protocol.rank_link import TotalSteps
from elastic_runtime.run.spec import RunSpec, WorkersSpec
from elastic_runtime.run.status import Phase
from elastic_runtime.run.status_progress import Progress
from tests.unit.runtime.run_record.bench import NOON, Clock, worker

LOOK = 5.0
"""Seconds from one status to the next, at least."""
TOLD = 0.25
"""Seconds between two reported steps, at least, as in ``DurableState``."""


@dataclass(frozen=True)
class Change:
    """From that second on."""

    at: float
    ranks: int
    """That train; 0: none."""
    wanted: int
    leaving: float | None = None
    """Seconds from there to the deadline of one rank's notice."""


@dataclass(frozen=True)
class Script:
    """The training; each world begins with a pause."""

    changes: tuple[Change, ...]
    steps: int = 6000
    shared: float = 0.1
    """Seconds of a step that all ranks need."""
    divided: float = 0.8
    """Seconds of a step that are divided among the ranks."""
    noise: float = 0.2
    """Standard deviation of a step's time, relative to it."""
    pause: float = 4.0
    evaluation: tuple[int, float] = (200, 8.0)
    """Every so many steps, one of so many seconds."""

    def step_seconds(self, ranks: int, step: int, random: Random) -> float:
        every, seconds = self.evaluation
        own = (self.shared + self.divided / ranks) * max(0.2, random.gauss(1.0, self.noise))
        return own + (seconds if step % every == 0 else 0.0)


@dataclass(frozen=True)
class Look:
    """An estimate, and when it was made: seconds from the begin."""

    at: float
    progress: Progress


class Simulation:
    """Goes through the script."""

    def __init__(self, script: Script, seed: int) -> None:
        self._script, self._random = script, Random(seed)
        self._clock = Clock()
        most = max(each.wanted for each in script.changes)
        spec = RunSpec("run", "uid", ("true",), workers=WorkersSpec(1, most, most))
        self._record = RunRecord(spec, self._clock)
        self._record.rank_said(TotalSteps(script.steps, by_script=True), "worker-0")
        self._looked = self._told = 0.0
        self.looks: list[Look] = []

    def run(self) -> float:
        """Return the second of the last step."""
        script, step = self._script, 0
        todo = list(script.changes)
        now, change = todo[0], todo.pop(0)
        self._world(now.ranks)
        while step < script.steps:
            if todo and self._at >= todo[0].at:
                now, change = todo.pop(0), now
                if now.ranks != change.ranks:
                    self._world(now.ranks)
            if not now.ranks:
                self._pass(1.0, now)
                continue
            self._pass(script.step_seconds(now.ranks, step + 1, self._random), now)
            step += 1
            if self._at - self._told >= TOLD or step == script.steps:
                self._told = self._at
                self._record.rank_said(Step(step), "worker-0")
        self._look(now)
        return self._at

    @property
    def _at(self) -> float:
        return (self._clock.now - NOON).total_seconds()

    def _world(self, ranks: int) -> None:
        if not ranks:
            self._record.no_world()
            self._record.stand(Phase.SUSPENDED, "too few")
            return
        self._clock.tick(self._script.pause)
        self._record.stand(Phase.RUNNING, "they train")
        self._record.world([f"worker-{rank}" for rank in range(ranks)])

    def _pass(self, seconds: float, now: Change) -> None:
        while seconds > 0:
            part = min(seconds, LOOK)
            self._clock.tick(part)
            seconds -= part
            if self._at - self._looked >= LOOK:
                self._look(now)

    def _look(self, now: Change) -> None:
        self._looked = self._at
        workers = [worker(f"worker-{rank}") for rank in range(now.ranks)]
        ranks = {each.slots[0].rank_id: rank for rank, each in enumerate(workers)}
        if workers and now.leaving is not None:
            workers[-1].deadline = NOON + timedelta(seconds=now.at + now.leaving)
        if found := self._record.status(workers, ranks, now.wanted).progress:
            self.looks.append(Look(self._at, found))


def at_half_time(script: Script, seed: int) -> tuple[float, Progress]:
    """Return the seconds that were left at half time, and what the status said then."""
    looks, end = simulated(script, seed)
    look = max((each for each in looks if each.at <= end / 2), key=lambda each: each.at)
    return end - look.at, look.progress


def simulated(script: Script, seed: int) -> tuple[Sequence[Look], float]:
    """Return all estimates of the training, and the second of its end."""
    simulation = Simulation(script, seed)
    end = simulation.run()
    return simulation.looks, end
