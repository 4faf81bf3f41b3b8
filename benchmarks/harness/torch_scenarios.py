"""What is done to a training of ``torch_training.py``, by our engine ``torch``, and by ``torchrun`` or TorchFT."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from benchmarks.harness.measures import Measure
from benchmarks.harness.ours import OurLauncher
from benchmarks.harness.processes import kill
from benchmarks.harness.records import Step, first_whole_step, rate
from benchmarks.harness.scenarios import Chance, Figures, Pace, Scenario
from benchmarks.harness.sides import RoundFailed, Side, Training
from benchmarks.harness.torchft import TorchFT, is_installed
from benchmarks.harness.torchrun import Torchrun

SCRIPT = Path(__file__).resolve().parent.parent / "torch_training.py"
SHARDED = SCRIPT.with_name("sharded_training.py")
ROUNDS = 3
FINISH = 120.0
"""Seconds: a peer that has gone back to its snapshot is a hundred steps behind the one that it is to stop at."""

SOON = 10.0
"""Seconds, of a training that nothing has happened to."""


def whole_step(steps: Sequence[Step], begin: float, counts: Callable[[Step], bool]) -> tuple[float, float] | None:
    """The first step after ``begin`` that every rank of its world has completed, of those that count.

    Returns:
        Seconds since the epoch: when the last rank had completed it, and when the last step before it that does not
        count was completed; None while there is none.
    """
    first = first_whole_step([step for step in steps if step.time > begin and counts(step)])
    if first is None:
        return None
    before = max((step.time for step in steps if step.time < first.time and not counts(step)), default=begin)
    return first.time, before


def steady_rate(training: Training, pace: Pace, size: int, window: float) -> float:
    """Steps per second of the first world of that size, over so many seconds after its warm-up."""
    first = f"first step at {size}"
    training.wait_for(first, lambda steps: whole_step(steps, 0.0, lambda step: step.size == size), pace.timeout)
    training.let_run(pace.warm_up)
    begin = time.time()
    return rate(training.let_run(window), begin, time.time())


def play(measures: Mapping[str, Measure], training: Training, pace: Pace, chance: Chance) -> Figures:
    """2 for a while, 3, a SIGKILL, 3 again, 2."""
    figures: dict[Measure, float] = {}

    def wait(what: str, begin: float, counts: Callable[[Step], bool]) -> tuple[float, float]:
        return training.wait_for(what, lambda steps: whole_step(steps, begin, counts), pace.timeout)

    figures[measures["throughput"]] = steady_rate(training, pace, 2, pace.window)

    asked = training.resize(3)
    first, last = wait("step at 3", asked, lambda step: step.size == 3)
    figures[measures["scale_out_pause"]] = first - last
    steps = training.let_run(pace.settle + chance.delay)

    victim = max((step for step in steps if step.rank == chance.victim), key=lambda step: step.time).pid
    killed = time.time()
    kill(victim)
    # No step of the old world is whole without it.
    first, _ = wait("step after the kill", killed, lambda step: step.pid != victim)
    figures[measures["kill"]] = first - killed
    wait("step at 3 again", first, lambda step: step.size == 3)
    training.let_run(pace.settle)

    asked = training.resize(2)
    first, last = wait("step at 2", asked, lambda step: step.size == 2)
    figures[measures["leave_pause"]] = first - last
    with suppress(RoundFailed):  # The figures are there; that it has not ended is told beside them.
        training.finish(FINISH)
    return figures


def play_seldom(measure: Measure, training: Training, pace: Pace, _chance: Chance) -> Figures:
    """2 for a while."""
    figures = {measure: steady_rate(training, pace, 2, pace.window)}
    with suppress(RoundFailed):  # As above.
        training.finish(SOON)
    return figures


def play_sharded(training: Training, pace: Pace, chance: Chance) -> Figures:
    """4 for a while, 3, 4 again, a SIGKILL."""
    figures: dict[Measure, float] = {}

    def wait(what: str, begin: float, counts: Callable[[Step], bool]) -> tuple[float, float]:
        return training.wait_for(what, lambda steps: whole_step(steps, begin, counts), pace.timeout)

    figures[Measure.SHARDED_THROUGHPUT] = steady_rate(training, pace, 4, 3 * pace.window)
    steps: Sequence[Step] = ()
    for measure, size in ((Measure.SHARDED_LEAVE, 3), (Measure.SHARDED_SCALE_OUT, 4)):
        asked = training.resize(size)
        first, last = wait(f"step at {size}", asked, lambda step, size=size: step.size == size)  # type: ignore[misc]
        figures[measure] = first - last
        steps = training.let_run(pace.settle + chance.delay)
    victim = max((step for step in steps if step.rank == chance.victim), key=lambda step: step.time).pid
    killed = time.time()
    kill(victim)
    first, _ = wait("step after the kill", killed, lambda step: step.pid != victim)
    figures[Measure.SHARDED_KILL] = first - killed
    training.let_run(pace.settle)
    with suppress(RoundFailed):  # As above.
        training.finish(FINISH)
    return figures


def sharded_scenarios() -> tuple[Scenario, ...]:
    """One."""
    wanted = frozenset(each for each in Measure if each.startswith("sharded_"))
    ours, peer = OurLauncher(engine="torch", script=SHARDED), Torchrun(SHARDED)
    return (Scenario("sharded", 4, wanted, ROUNDS, ours, "", peer, "", play_sharded),)


def _measures(peer: str, size: str) -> dict[str, Measure]:
    return {name: Measure(f"{peer}_{name}_{size}") for name in ("throughput", "scale_out_pause", "kill", "leave_pause")}


def torch_scenarios() -> tuple[Scenario, ...]:
    """One for each size of model and peer, TorchFT where it is installed; and with a commit at every tenth step."""
    ours = OurLauncher(engine="torch", script=SCRIPT)

    def scenario(name: str, peer: Side, size: str) -> Scenario:
        measures = _measures(name, size)
        wanted, played = frozenset(measures.values()), partial(play, measures)
        return Scenario(f"{name}-{size}", 2, wanted, ROUNDS, ours, size, peer, size, played)

    def seldom(size: str) -> Scenario:
        measure, peer = Measure(f"tenth_throughput_{size}"), Torchrun(SCRIPT)
        wanted, played = frozenset({measure}), partial(play_seldom, measure)
        return Scenario(f"tenth-{size}", 2, wanted, ROUNDS, ours, f"{size}/10", peer, size, played)

    peers: dict[str, Side] = {"torch": Torchrun(SCRIPT)} | ({"torchft": TorchFT()} if is_installed() else {})
    sizes = ("small", "large")
    return (*(scenario(name, peer, size) for size in sizes for name, peer in peers.items()), *map(seldom, sizes))
