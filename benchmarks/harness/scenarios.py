"""What is done to a training, the same on both sides, and the figures that come of it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

from benchmarks.harness.measures import Measure
from benchmarks.harness.ours import OurLauncher
from benchmarks.harness.peer import Horovodrun, StaticHorovodrun
from benchmarks.harness.processes import kill
from benchmarks.harness.records import Change, Step, change_after, first_whole_step, rate
from benchmarks.harness.sides import Side, Training

Figures = Mapping[Measure, float]


@dataclass(frozen=True, slots=True)
class Pace:
    """Waits of a scenario, in seconds."""

    settle: float
    """From a world's first step to the next event: what the launcher prepares in the background is ready by then."""
    window: float
    """Over which steps per second are counted."""
    warm_up: float
    """From the first step to that window."""
    timeout: float = 120.0
    """Longest wait for a world, well over Gloo's 30 s that stock Horovod waits for after a SIGKILL."""


NORMAL = Pace(settle=5.0, window=8.0, warm_up=3.0)
QUICK = Pace(settle=3.0, window=3.0, warm_up=1.0)


@dataclass(frozen=True, slots=True)
class Chance:
    """What differs from round to round; the same for both sides of one."""

    delay: float
    """Seconds, up to 1, by which events are put off, so that no side's polling keeps step with them."""
    victim: int
    """Rank to be killed: each of them equally often, because stock Horovod's fate depends on which one it is."""

    @classmethod
    def of(cls, scenario: str, number: int) -> Self:
        """Of the round with this number, from 1."""
        return cls(random.Random(f"{scenario} {number}").random(), (number + 1) % 3)  # noqa: S311  # no secret


@dataclass(frozen=True, slots=True)
class Scenario:
    """One kind of round.

    ``play`` runs one training of one side to its clean end.
    """

    name: str
    size: int
    """Workers to begin with."""
    measures: frozenset[Measure]
    rounds: int
    """By default."""
    ours: Side
    ours_input: str
    peer: Side
    peer_input: str
    play: Callable[[Training, Pace, Chance], Figures]


def play_resize(training: Training, pace: Pace, chance: Chance) -> Figures:
    """2 → 3 → 2."""
    figures = _start(training, 2, pace)
    training.let_run(pace.settle + chance.delay)
    asked = training.resize(3)
    figures[Measure.SCALE_OUT] = _wait_for_change(training, asked, 3, pace).resumed - asked
    training.let_run(pace.settle + chance.delay)
    asked = training.resize(2)
    change = _wait_for_change(training, asked, 2, pace)
    figures[Measure.LEAVE] = change.resumed - asked
    figures[Measure.LEAVE_PAUSE] = change.pause
    figures[Measure.LEAVE_LOST] = change.steps_lost
    training.finish()
    return figures


def play_kill(training: Training, pace: Pace, chance: Chance) -> Figures:
    """SIGKILL of one rank of 3."""
    figures = _start(training, 3, pace)
    steps = training.let_run(pace.warm_up + chance.delay)
    victim = max((step for step in steps if step.rank == chance.victim), key=lambda step: step.time)
    killed = time.time()
    kill(victim.pid)
    change = _wait_for_change(training, killed, None, pace)
    figures[Measure.KILL] = figures[Measure.KILL_MEAN] = change.resumed - killed
    figures[Measure.KILL_LOST] = change.steps_lost
    training.finish()
    return figures


def play_steady(training: Training, pace: Pace, _chance: Chance) -> Figures:
    """Nothing happens for a while."""
    figures = _start(training, 2, pace)
    training.let_run(pace.warm_up)
    begin = time.time()
    steps = training.let_run(pace.window)
    figures[Measure.THROUGHPUT] = rate(steps, begin, time.time())
    training.finish()
    return figures


def play_static(training: Training, pace: Pace, chance: Chance) -> Figures:
    """As the steady one, told apart by its measure."""
    return {Measure.THROUGHPUT_STATIC: play_steady(training, pace, chance)[Measure.THROUGHPUT]}


def play_helpers(training: Training, pace: Pace, chance: Chance) -> Figures:
    """As the steady one, told apart by its measure; its start is another script's."""
    return {Measure.HELPERS: play_steady(training, pace, chance)[Measure.THROUGHPUT]}


def _start(training: Training, size: int, pace: Pace) -> dict[Measure, float]:
    def look(steps: list[Step]) -> Step | None:
        return first_whole_step(steps, size)

    first = training.wait_for(f"first step at {size}", look, pace.timeout)
    # Only the start with 2 is the measure, so that all its figures are of one kind.
    return {Measure.START: first.time - training.launched} if size == 2 else {}


def _wait_for_change(training: Training, event: float, size: int | None, pace: Pace) -> Change:
    what = "world after the event" if size is None else f"world of {size}"
    return training.wait_for(what, lambda steps: change_after(steps, event, size), pace.timeout)


def scenarios() -> tuple[Scenario, ...]:
    """All of them, in the order in which they are run."""
    ours, peer = OurLauncher(), Horovodrun()
    often = OurLauncher(checkpoint_every=5.0)
    start = Measure.START
    resize = frozenset({start, Measure.SCALE_OUT, Measure.LEAVE, Measure.LEAVE_PAUSE, Measure.LEAVE_LOST})
    killing = frozenset({Measure.KILL, Measure.KILL_MEAN, Measure.KILL_LOST})
    steady = frozenset({start, Measure.THROUGHPUT})
    static = frozenset({Measure.THROUGHPUT_STATIC})
    helpers = frozenset({Measure.HELPERS})
    return (
        Scenario("resize", 2, resize, 5, ours, "fixed", peer, "fixed", play_resize),
        Scenario("kill", 3, killing, 6, ours, "fixed", peer, "fixed", play_kill),
        Scenario("steady", 2, steady, 5, ours, "fixed", peer, "fixed", play_steady),
        Scenario("static", 2, static, 5, ours, "fixed", StaticHorovodrun(), "fixed", play_static),
        Scenario("helpers", 2, helpers, 3, often, "helpers", often, "sampler", play_helpers),
    )
