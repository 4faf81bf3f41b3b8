"""Half of the ranks are lost, one after the other, and not replaced: ours, and restarts under ``torchrun``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.evidence.document import Chart, Document, Goal, Table, smoothed, weights_goal, weights_told
from benchmarks.evidence.law import SECONDS, STEP, losses
from benchmarks.evidence.records import lost, pace, repeated

if TYPE_CHECKING:
    from benchmarks.harness.records import Step

NAME = "halves"
RANKS = 8
STEPS, QUICK = 400, 160
SNAPSHOT_EVERY = 25
SEED = 3
LIMIT = 420.0
"""Seconds of one run."""
LEAST = 2.2
"""Times the throughput of a restart: the goal."""
CALM, OURS, RESTART, HASTY = "undisturbed", "ours", "restart", "hasty"
TITLES = {
    CALM: "undisturbed (ours, 2 ranks)",
    OURS: "ours",
    RESTART: "restart (`torchrun`, its defaults)",
    HASTY: "restart (`torchrun`, `last_call_timeout=1`)",
}
SELDOM = round(sum(SECONDS) / 2 / STEP)
"""Steps from one fault to the next, in the mean of the published law."""
NEVER = 3600.0
"""Seconds before the slot of a killed rank is used again."""
SOURCE = "https://arxiv.org/abs/2605.11215"


def measure(folder: Path, say: Any, *, quick: bool) -> dict[str, Any]:
    """Do all runs; returns the raw data."""
    from benchmarks.evidence.language import Lesson
    from benchmarks.evidence.playing import Played, by_ours, play
    from benchmarks.harness.machine import description
    from benchmarks.harness.torchrun import Torchrun

    script, machine = Path(__file__).resolve().with_name("training.py"), description(("torch",))
    lesson = Lesson(QUICK if quick else STEPS, parts=RANKS, snapshot_every=SNAPSHOT_EVERY)
    faults = losses(lesson.steps, RANKS, SEED)
    nodes = f"1:{RANKS}"
    played: dict[str, Played] = {
        CALM: play(CALM, by_ours(), folder / CALM, lesson, 2, (), LIMIT, say),
        OURS: play(OURS, by_ours(NEVER, RANKS), folder / OURS, lesson, RANKS, faults, LIMIT, say),
    }
    for name, last_call in ((HASTY, 1), (RESTART, None)):
        side = Torchrun(script, nodes, last_call)
        played[name] = play(name, side, folder / name, lesson, RANKS, faults, LIMIT, say, _lose_node)
    runs = {}
    for name, each in played.items():
        kills = [event.seconds for event in each.events]
        first, last = each.points[0].seconds, max(point.seconds for point in each.points)
        usual = pace(each.points, 2 if name == CALM else RANKS)
        runs[name] = {
            "start": round(first, 3),
            "seconds": round(last - first, 3),
            "repeated": repeated(each.points),
            "pace": round(usual, 5),
            "lost": [round(cost, 3) for cost in lost(each.points, kills, usual)],
            **each.raw(played[CALM].weights),
        }
    law = {"seed": SEED, "faults": [[fault.step, fault.victim] for fault in faults]}
    return {"machine": machine, "lesson": lesson.as_dict(), "law": law, "runs": runs}


def _lose_node(step: Step) -> None:
    """Kill a rank together with its torchrun, as a machine is lost."""
    import psutil

    from benchmarks.harness.processes import kill

    node = psutil.Process(step.pid).parent()
    assert node is not None, "torchrun is its parent"
    kill(node.pid)
    kill(step.pid)


def present(raw: Mapping[str, Any]) -> Document:
    """What the raw data says."""
    runs, lesson = raw["runs"], raw["lesson"]
    samples = lesson["steps"] * lesson["parts"] * lesson["sequences"]
    rates = {name: samples / run["seconds"] for name, run in runs.items()}
    ratios = {name: rates[OURS] / rates[name] for name in (RESTART, HASTY)}
    same = runs[OURS]["digest"] == runs[CALM]["digest"]
    lead = (
        f"Half of {RANKS} ranks were lost one after the other, and not replaced. Over the whole run, ours did "
        f"{ratios[RESTART]:.1f} times as many "
        f"samples a second as a restart under `torchrun` with its defaults, and {ratios[HASTY]:.1f} times as many as "
        "one that waits 1 s "
        f"for further nodes instead of 30 s. [ReCoVer]({SOURCE}) reports 2.23 times for 256 of 512 GPUs."
    )
    goals = [
        Goal(
            f"samples a second, by those of {TITLES[name]}",
            f"{ratios[name]:.2f}",
            f"at least {LEAST}",
            ratios[name] >= LEAST,
        )
        for name in (RESTART, HASTY)
    ]
    return Document(
        NAME,
        "Half lost: throughput without replacements",
        lead,
        (*goals, weights_goal(same, runs[OURS]["difference"])),
        (_table(runs, rates),),
        (
            _chart(runs, 3, "Loss over time", "loss of a byte, mean of 20 points", 20),
            _chart(runs, 2, "Ranks over time", "ranks", 1),
        ),
        _method(raw),
        (
            "Published: 256 of 512 GPUs lost over the run. The text that was read for this page does not say how fast.",
            f"Here: {RANKS // 2} losses, evenly over the first three quarters of the steps, with seed "
            f"{raw['law']['seed']}: at steps "
            + ", ".join(f"{step} (rank {victim})" for step, victim in raw["law"]["faults"])
            + ". The victims are drawn among the ranks that are left, without rank 0, on whose machine the rendezvous "
            "of `torchrun` is.",
            f"The ratio depends on this law. At the cost of a loss in the table, a loss each {SELDOM} steps, as in "
            f"the faults, would give {seldom(runs, RESTART):.2f} times (defaults) and {seldom(runs, HASTY):.2f} times.",
        ),
        (
            f"All ranks share the cores that the hardware names. So {RANKS // 2} ranks compute as fast as {RANKS}, "
            "and what differs is recovery. The same holds for both sides.",
            "A restart of `torchrun` imports torch in each rank anew, on the same cores. Machines of their own would "
            "do that in parallel.",
        ),
        raw["machine"],
    )


def seldom(runs: Mapping[str, Any], name: str) -> float:
    """The ratio that the same costs of a loss come to where losses are :data:`SELDOM` steps apart."""
    steps = SELDOM * runs[OURS]["pace"]
    restart, ours = (steps + median(runs[each]["lost"]) for each in (name, OURS))
    return float(restart / ours)


def _table(runs: Mapping[str, Any], rates: Mapping[str, float]) -> Table:
    same = {name: run["digest"] == runs[CALM]["digest"] for name, run in runs.items()}
    columns: dict[str, list[str]] = {
        "run": [TITLES[name] for name in runs],
        "time (s)": [f"{run['seconds']:.1f}" for run in runs.values()],
        "samples a second": [f"{rates[name]:.0f}" for name in runs],
        "steps repeated": [str(run["repeated"]) for run in runs.values()],
        "cost of a loss, median (s)": [f"{median(run['lost']):.2f}" if run["lost"] else "—" for run in runs.values()],
        "usual step at first (ms)": [f"{1000 * run['pace']:.1f}" for run in runs.values()],
        "final weights": [
            "the reference" if name == CALM else weights_told(same[name], run["difference"])
            for name, run in runs.items()
        ],
    }
    return Table(tuple(columns), tuple(zip(*columns.values(), strict=True)))


def _chart(runs: Mapping[str, Any], column: int, title: str, y: str, mean_of: int) -> Chart:
    curves = tuple(
        smoothed(
            TITLES[name].replace("`", ""),
            [(point[0], float(point[column])) for point in run["points"]],
            [event[0] for event in run["events"]],
            mean_of,
        )
        for name, run in runs.items()
    )
    return Chart(title, "seconds since the launch", y, curves)


def _method(raw: Mapping[str, Any]) -> tuple[str, ...]:
    lesson = raw["lesson"]
    return (
        f"The training is that of the faults, with {lesson['steps']} steps of {lesson['parts']} micro-batches, and a "
        f"snapshot every {lesson['snapshot_every']} steps under `torchrun`.",
        "**Ours**: the engine `torch` in place, a commit at every step. A loss is SIGKILL of the rank, and "
        "`recovery.backoff` of an hour keeps its slot empty.",
        f"**Restart**: `torchrun --nnodes 1:{RANKS}`, one for each rank. A loss is SIGKILL of the rank and of its "
        "`torchrun`. The rendezvous then waits for further nodes, "
        "since there may be more: 30 s by default (`last_call_timeout`).",
        "Samples count once: those of steps that are done again do not. The time is from the first step of a run to "
        "its last.",
        "`make evidence ONLY=halves` does it again.",
    )
