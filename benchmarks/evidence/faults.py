"""A fixed number of steps with a rank killed now and then: ours, a restart from checkpoints, and TorchFT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.evidence.document import Chart, Document, Goal, Table, smoothed, weights_goal, weights_told
from benchmarks.evidence.law import SECONDS, STEP, STEPS, draw
from benchmarks.evidence.records import HORIZON, Point, lost, pace, repeated

NAME = "faults"
QUICK = 600
"""Steps, to see whether it runs."""
RANKS = 2
SEED = 1
LIMIT = 420.0
"""Seconds of one run."""
MOST = 1.03
"""Times the fault-free time: the goal."""
EVEN = 1.05
"""Times the pace of its fault-free run: a machine on which a run has a pace further off was not quiet."""
CALM, OURS, RESTART, TORCHFT = "fault-free", "ours", "restart", "torchft"
TITLES = {CALM: "fault-free (ours)", OURS: "ours", RESTART: "restart from checkpoints (`torchrun`)", TORCHFT: "TorchFT"}
PUBLISHED = {OURS: "1.00 (TorchPass)", RESTART: "2.02 (818 min)", TORCHFT: "2.30 (930 min)"}
SOURCE = "https://clockwork.io/blog/keeping-distributed-training-running-through-failures"


def measure(folder: Path, say: Any, *, quick: bool) -> dict[str, Any]:
    """Do all runs, each side's with faults after its own without; returns the raw data."""
    from benchmarks.evidence.language import Lesson
    from benchmarks.evidence.playing import Played, by_ours, play
    from benchmarks.harness.machine import description
    from benchmarks.harness.sides import Side
    from benchmarks.harness.torchft import TorchFT, is_installed
    from benchmarks.harness.torchrun import Torchrun

    here = Path(__file__).resolve().parent
    machine = description(("torch",))
    lesson = Lesson(QUICK if quick else STEPS)
    faults = draw(lesson.steps, RANKS, SEED)
    sides: dict[str, Side] = {OURS: by_ours(), RESTART: Torchrun(here / "training.py", str(RANKS))}
    if is_installed():
        sides[TORCHFT] = TorchFT(here / "replica.py")
    else:
        say("TorchFT is left out: there is no .venv-torchft (make setup-torchft)")
    played: dict[str, Played] = {}
    calm: dict[str, dict[str, Any]] = {}
    for name, side in sides.items():
        undisturbed = play(f"{name}, fault-free", side, folder / f"{name}-calm", lesson, RANKS, (), LIMIT, say)
        calm[name] = figures(undisturbed.points, (), lesson.steps)
        played.setdefault(CALM, undisturbed)
        played[name] = play(name, side, folder / name, lesson, RANKS, faults, LIMIT, say)
    runs = {}
    for name, each in played.items():
        runs[name] = {
            **figures(each.points, [event.seconds for event in each.events], lesson.steps),
            "wasted": each.wasted,
            **each.raw(played[CALM].weights),
        }
    law = {"seed": SEED, "faults": [[fault.step, fault.victim] for fault in faults]}
    return {"machine": machine, "lesson": lesson.as_dict(), "law": law, "calm": calm, "runs": runs}


def figures(points: Sequence[Point], kills: Sequence[float], steps: int) -> dict[str, Any]:
    """What a run comes to, from all its points. Times in seconds."""
    first, last = points[0], max(points, key=lambda point: point.seconds)
    usual = pace(points, RANKS)
    return {
        "start": round(first.seconds, 3),
        "seconds": round(last.seconds - first.seconds, 3),
        "steps": steps,
        "repeated": repeated(points),
        "missed": round(sum(1 - point.size / RANKS for point in points), 1),
        "pace": round(usual, 5),
        "lost": [round(each, 3) for each in lost(points, kills, usual)],
    }


def present(raw: Mapping[str, Any]) -> Document:
    """What the raw data says."""
    runs, calm, steps = raw["runs"], raw["calm"], raw["lesson"]["steps"]
    ratios = {name: run["seconds"] / calm[name]["seconds"] for name, run in runs.items() if name != CALM}
    same = {name: run["digest"] == runs[CALM]["digest"] for name, run in runs.items()}
    quiet = is_quiet(raw)
    told = ratios if quiet else {name: own_ratio(runs[name]) for name in ratios}
    peers = {RESTART: "a restart from checkpoints under `torchrun`", TORCHFT: "TorchFT"}
    others = [f"{peer} {told[name]:.2f} times its own" for name, peer in peers.items() if name in runs]
    lead = (
        f"{steps:,} steps of a small language model on {RANKS} ranks, of which one was killed with SIGKILL "
        f"{len(raw['law']['faults'])} times. Ours took {told[OURS]:.3f} times its fault-free time"
        + f", and {' and '.join(others)}."
        + ("" if quiet else " These figures are by the pace of each run itself: other work disturbed the machine.")
        + f" Clockwork published [the same comparison]({SOURCE}) with 64 GPUs."
    )
    return Document(
        NAME,
        "Faults: time to a fixed number of steps",
        lead,
        (
            Goal(
                "wall time by fault-free time",
                f"{ratios[OURS]:.3f}" if quiet else f"{ratios[OURS]:.3f}, on a machine that was not quiet",
                f"at most {MOST}",
                quiet and ratios[OURS] <= MOST,
            ),
            Goal(
                "the same, by the pace of its own undisturbed steps",
                f"{own_ratio(runs[OURS]):.3f}",
                f"at most {MOST}",
                own_ratio(runs[OURS]) <= MOST,
            ),
            weights_goal(same[OURS], runs[OURS]["difference"]),
        ),
        (_table(raw, ratios, same),),
        (_losses(runs), _progress(runs)),
        _method(raw),
        _law(raw),
        _limits(runs),
        raw["machine"],
    )


def _table(raw: Mapping[str, Any], ratios: Mapping[str, float], same: Mapping[str, bool]) -> Table:
    runs, calm = raw["runs"], raw["calm"]
    rows = list(ratios)
    columns: dict[str, list[str]] = {
        "run": [TITLES[name] for name in rows],
        "wall time (s)": [f"{runs[name]['seconds']:.1f}" for name in rows],
        "the same without faults (s)": [f"{calm[name]['seconds']:.1f}" for name in rows],
        "ratio": [f"{ratios[name]:.3f}" for name in rows],
        "by its own pace": [f"{own_ratio(runs[name]):.3f}" for name in rows],
        "published ratio": [PUBLISHED[name] for name in rows],
        "steps repeated": [str(runs[name]["repeated"] + runs[name]["wasted"]) for name in rows],
        "batches not trained": [f"{runs[name]['missed']:.0f}" if name == TORCHFT else "0" for name in rows],
        "lost at a fault, median (s)": [
            f"{median(runs[name]['lost']):.2f}" if runs[name]["lost"] else "—" for name in rows
        ],
        "step at full size, without faults (ms)": [f"{1000 * calm[name]['pace']:.1f}" for name in rows],
        "final weights": [weights_told(same[name], runs[name]["difference"]) for name in rows],
    }
    return Table(tuple(columns), tuple(zip(*columns.values(), strict=True)))


def is_quiet(raw: Mapping[str, Any]) -> bool:
    """Whether each side's two runs had the same pace where nothing was done to them."""
    runs, calm = raw["runs"], raw["calm"]
    return all(1 / EVEN <= runs[name]["pace"] / of["pace"] <= EVEN for name, of in calm.items())


def own_ratio(run: Mapping[str, Any]) -> float:
    """A run's time by that of its steps at its own pace, as far as its faults have made it longer."""
    return 1 + float(sum(run["lost"])) / float(run["steps"] * run["pace"])


def _losses(runs: Mapping[str, Any]) -> Chart:
    curves = tuple(
        smoothed(TITLES[name].replace("`", ""), [(point[0], point[3]) for point in run["points"]], _marks(run))
        for name, run in runs.items()
    )
    return Chart("Loss over time", "seconds since the launch", "loss of a byte, mean of 20 points", curves)


def _progress(runs: Mapping[str, Any]) -> Chart:
    curves = tuple(
        smoothed(
            TITLES[name].replace("`", ""),
            [(point[0], point[1]) for point in run["points"][::4]],
            _marks(run),
            mean_of=1,
        )
        for name, run in runs.items()
    )
    return Chart("Steps over time", "seconds since the launch", "step", curves)


def _marks(run: Mapping[str, Any]) -> list[float]:
    return [event[0] for event in run["events"]]


def _method(raw: Mapping[str, Any]) -> tuple[str, ...]:
    lesson = raw["lesson"]
    return (
        f"The model is a transformer over bytes: {lesson['depth']} layers of {lesson['width']}, {lesson['context']} "
        "bytes of context, AdamW, "
        "single precision. The text is `pydoc_data/topics.py`, the language reference that Python ships.",
        f"A step has {lesson['parts']} micro-batches of {lesson['sequences']} sequences. The number of the step "
        "decides which bytes they are, so "
        "all runs train on the same data in the same order.",
        "Each micro-batch's gradient is rounded to a multiple of 2^-36, and all are added in double precision by one "
        "all-reduce. "
        "Such sums are exact, so the weights do not depend on the number of ranks.",
        "**Fault-free** and **ours**: the engine `torch` in place under this project's launcher, with a commit at "
        "every step. "
        "`recovery.backoff` is 0.1 s and stays there: by default, a slot's delay doubles with each failure within 5 "
        "minutes, and here faults come 200 times as often as there.",
        "**Restart**: `torchrun --nnodes 2 --nproc-per-node 1 --max-restarts 100`, one for each rank. A snapshot "
        f"every {lesson['snapshot_every']} steps, as "
        "in the published comparison. No spare node is awaited: the number of nodes is fixed, so the 30 s of its "
        "elastic rendezvous do not occur.",
        "**TorchFT**: two replica groups of one rank, Gloo with a timeout of 5 s as in its `train_ddp.py`, and a "
        "lighthouse with the settings of its README. A `torchrun` starts a killed "
        "rank again. While a group is away, its half of each batch is not trained on; the table counts these as "
        "batches.",
        "Wall time is from the first step that a run completed to its last. So starts are not in it. Each side trains "
        "without faults first, and then with them; all runs follow each other on the same machine. The ratio is that "
        "of these two. The plots have the fault-free run of ours.",
        "By its own pace: what the faults have cost, with the steps done again, by the time of all steps at the "
        f"median pace of the same run. A fault's cost is the time until {HORIZON} new steps are done, "
        "less what so many steps take otherwise. Other work on the machine disturbs this figure less.",
        "Steps repeated are those done again, and those that a rank of TorchFT computed and did not commit.",
        "`make evidence ONLY=faults` does it again.",
    )


def _law(raw: Mapping[str, Any]) -> tuple[str, ...]:
    faults = ", ".join(f"{step} (rank {victim})" for step, victim in raw["law"]["faults"])
    low, high = (round(each / STEP) for each in SECONDS)
    return (
        f"Published: a fault each {SECONDS[0]:,.0f} to {SECONDS[1]:,.0f} s. 3,000 steps took 405 minutes, or "
        f"{STEP:.1f} s each, so this is a fault each {low} to {high} steps.",
        f"Here: SIGKILL of one rank each {low} to {high} steps, both drawn evenly, with seed {raw['law']['seed']}: at "
        f"steps {faults}. All runs have the same faults, at the first time that any rank "
        "completes that step.",
        "This favors the slower runs. In the published comparison faults came by the clock, so a slower run had more "
        "of them.",
    )


def _limits(runs: Mapping[str, Any]) -> tuple[str, ...]:
    missing = () if TORCHFT in runs else ("TorchFT was not installed on this machine, and is left out.",)
    return (
        *missing,
        "One machine, two ranks, small steps. Starting a process takes as long as some hundred steps here. With 8 s a "
        "step it takes less than one, "
        "but machines have to be found and models to be loaded.",
        "A fault is a killed process. Its machine and its file system remain, so a replacement starts at once.",
        "TorchPass is not measured here. It is a product for GPU clusters, with spare nodes.",
        "One run of each kind.",
    )
