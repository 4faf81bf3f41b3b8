"""Most workers of a run are killed at once: how long until it has its full size again, and in how many worlds?"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.evidence.document import Chart, Document, Goal, Table, smoothed, weights_goal
from benchmarks.evidence.records import curve, read, thinned

NAME = "mass"
WORKERS, LOST = 32, 30
QUICK = 8, 6
WAIT = 0.25
"""Seconds of a step, in the place of a GPU's kernels."""
SETTLE = 5.0
"""Seconds of training before the loss."""
LIMIT = 150.0
"""Seconds for each of: the start, the return to full size, the end."""
MOST_SECONDS, MOST_WORLDS = 30.0, 3
"""The goals."""
SOURCE = "https://github.com/intelligent-machine-learning/dlrover/issues/1690"


def measure(folder: Path, say: Any, *, quick: bool) -> dict[str, Any]:
    """Do the run, and one of two ranks for its weights; returns the raw data."""
    from dataclasses import asdict, replace

    from benchmarks.evidence.language import WEIGHTS, Lesson, Weights
    from benchmarks.evidence.playing import by_ours, plain, play
    from benchmarks.evidence.status import held, status_of
    from benchmarks.harness.machine import description
    from benchmarks.harness.records import first_whole_step
    from benchmarks.harness.sides import Training

    workers, lost = QUICK if quick else (WORKERS, LOST)
    machine, job = description(("torch",)), folder / "run"
    lesson = Lesson(100_000, parts=workers, width=16, depth=1, heads=2, context=16, sequences=1, wait=WAIT)
    with Training(by_ours(ranks=workers), job, workers, str(lesson)) as training:
        training.wait_for("a first step of all", lambda steps: first_whole_step(steps, workers), LIMIT)
        say(f"{workers} workers train")
        before = training.let_run(SETTLE)
        status = status_of(job)
        assert status is not None, "it trains, so it has a status"
        holdings = {kind: asdict(each) for kind, each in held(training.launcher, status).items()}
        known = {each.pid for each in before}
        killed = time.time()
        _kill([worker.pids[0] for worker in status.workers[-lost:]])
        say(f"{lost} killed; {sum(each['memory'] for each in holdings.values()):.0f} MiB before")

        def whole(steps: list[Any]) -> Any:
            # Only a world with new processes is another one.
            fresh = {step.step for step in steps if step.pid not in known}
            return first_whole_step([step for step in steps if step.step in fresh and step.time > killed], workers)

        back = training.wait_for("a step of all again", whole, LIMIT)
        say(f"all train again after {back.time - killed:.1f} s")
        status = status_of(job)
        assert status is not None, "it had one"
        training.finish(LIMIT)
    points = curve(read(job / "records"), training.launched)
    done = max(point.step for point in points)
    weights = Weights.read(job / WEIGHTS)
    alone = play(
        "the same with 2 ranks", by_ours(), folder / "weights", replace(lesson, steps=done, wait=0.0), 2, (), LIMIT, say
    )
    worlds = [[round(world.time.timestamp() - killed, 2), world.size] for world in status.history]
    return {
        "machine": machine,
        "lesson": lesson.as_dict(),
        "workers": workers,
        "lost": lost,
        "killed": round(killed - training.launched, 3),
        "seconds": round(back.time - killed, 2),
        "worlds": [world for world in worlds if world[0] > 0],
        "holdings": holdings,
        "steps": done,
        "digest": weights.digest,
        "expected": alone.weights.digest,
        "difference": weights.difference(alone.weights),
        "left_behind": training.left_behind,
        "exit_code": training.exit_code,
        "points": plain(thinned(points)),
    }


def _kill(pids: Sequence[int]) -> None:
    """All at once: none of them goes on while others are killed."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def present(raw: Mapping[str, Any]) -> Document:
    """What the raw data says."""
    workers, lost, seconds, worlds = raw["workers"], raw["lost"], raw["seconds"], raw["worlds"]
    same = raw["digest"] == raw["expected"]
    sizes = [size for _, size in worlds]
    lead = (
        f"{lost} of {workers} workers were killed at once. All {workers} trained again after {seconds:.1f} s, and "
        f"{len(worlds)} worlds: "
        f"{', '.join(map(str, sizes))} ranks. DLRover's [issue 1690]({SOURCE}) reports 10 minutes for the same loss "
        "in a cluster."
    )
    memory = sum(each["memory"] for each in raw["holdings"].values())
    return Document(
        NAME,
        f"Mass loss: {lost} of {workers} workers at once",
        lead,
        (
            Goal(
                "kill to a step of all workers",
                f"{seconds:.1f} s",
                f"at most {MOST_SECONDS:.0f} s",
                seconds <= MOST_SECONDS,
            ),
            Goal("worlds until then", str(len(worlds)), f"at most {MOST_WORLDS}", len(worlds) <= MOST_WORLDS),
            weights_goal(same, raw["difference"]),
        ),
        (
            Table(
                ("world of", "formed after the kill"), tuple((f"{size} ranks", f"{at:.1f} s") for at, size in worlds)
            ),
            Table(
                ("before the kill", "processes", "open files", "memory (MiB)"),
                tuple(
                    (kind, str(each["processes"]), str(each["descriptors"]), f"{each['memory']:.0f}")
                    for kind, each in raw["holdings"].items()
                ),
            ),
        ),
        (_sizes(raw), _losses(raw)),
        (
            f"A run of {workers} workers with one rank each, the engine `torch` in place, a commit at every step. "
            f"After {SETTLE:.0f} s of training, {lost} agents are stopped "
            "with SIGSTOP, and then killed with SIGKILL. Their ranks end with them.",
            f"The model is tiny, so that {workers} ranks fit: {memory:,.0f} MiB for all processes, shared pages "
            "counted once.",
            f"A step waits {raw['lesson']['wait']:g} s, in the place of a GPU's kernels. Without that, ranks that "
            "train would take the cores from those that start, which no machine of its own does.",
            "The time ends with the first step that all ranks of a world of full size have completed. Worlds are "
            "those of the run's status.",
            f"The final weights are compared with those of two ranks that do the same {raw['steps']:,} steps "
            "undisturbed. Sums are exact, as in the faults.",
            "`make evidence ONLY=mass` does it again.",
        ),
        (
            f"Published: 30 of 32 pods deleted at once. Here: {lost} of {workers} agents killed at once. Rank 0 may "
            "be among them.",
        ),
        (
            "One machine: no pod has to be scheduled, no image to be pulled, and new workers are forked from a warm "
            "process. DLRover's figure is for pods.",
            "Without the wait in each step, training ranks take the cores from workers that start. Measured so once, "
            "on two cores with other work (2026-11-28), it took 35 s and 5 worlds.",
            f"All {workers} ranks share the cores that the hardware names. So the time is mostly that of starting "
            f"{lost} processes there.",
        ),
        raw["machine"],
    )


def _sizes(raw: Mapping[str, Any]) -> Chart:
    points = [(point[0], float(point[2])) for point in raw["points"]]
    return Chart(
        "Ranks over time",
        "seconds since the launch",
        "ranks that did a step",
        (smoothed("ranks", points, [raw["killed"]], mean_of=1),),
    )


def _losses(raw: Mapping[str, Any]) -> Chart:
    points = [(point[0], point[3]) for point in raw["points"]]
    return Chart(
        "Loss over time",
        "seconds since the launch",
        "loss of a byte, mean of 5 points",
        (smoothed("loss", points, [raw["killed"]], mean_of=5),),
    )
