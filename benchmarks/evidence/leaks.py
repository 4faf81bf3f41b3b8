"""Many resizes of a training with loader workers: what grows?"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.evidence.document import Chart, Document, Goal, Table, smoothed
from benchmarks.evidence.records import Point, curve, pace, read, thinned

if TYPE_CHECKING:
    from benchmarks.harness.records import Step

NAME = "leaks"
RESIZES, QUICK = 50, 6
SMALL, LARGE = 2, 3
LOADERS = 2
"""Of each rank."""
STEPS = 12
"""Of each world between two resizes."""
MEASURED = 300
"""Steps at the small size, before the first resize and after the last, over which the pace is taken."""
LOOKS = 5
LIMIT = 280.0
"""Seconds of the run."""
MOST = 1.02
"""Times the pace before: the goal."""
MOST_MEMORY = 1.1


def measure(folder: Path, say: Any, *, quick: bool) -> dict[str, Any]:
    """Do the run; returns the raw data."""
    from dataclasses import asdict

    from benchmarks.evidence.language import Lesson
    from benchmarks.evidence.playing import by_ours, plain
    from benchmarks.evidence.status import held, status_of
    from benchmarks.harness.machine import description
    from benchmarks.harness.sides import Training

    machine, lesson = description(("torch",)), Lesson(steps=0)
    resizes, measured = (QUICK, MEASURED // 5) if quick else (RESIZES, MEASURED)
    side = by_ours(ranks=LARGE, script=Path(__file__).resolve().with_name("loading.py"))
    deadline = time.monotonic() + LIMIT
    job = folder / "run"
    asked: list[float] = []
    holdings: list[dict[str, Any]] = []

    with Training(side, job, SMALL, str(lesson)) as training:

        def look(what: str) -> None:
            seen = []
            for _ in range(LOOKS):
                training.let_run(0.2)
                status = status_of(job)
                assert status is not None, "it trains, so it has a status"
                seen.append({kind: asdict(each) for kind, each in held(training.launcher, status).items()})
            found = least(seen)
            holdings.append(
                {"seconds": round(time.time() - training.launched, 2), "resizes": len(asked), "held": found}
            )
            say(f"{what}: {_told(found)}")

        def go_on(size: int, steps: int, begin: float) -> None:
            training.wait_for(f"{steps} steps at {size}", _done(size, steps, begin), deadline - time.monotonic())

        go_on(SMALL, measured, 0.0)
        look("before")
        while len(asked) < resizes:
            size = SMALL if len(asked) % 2 else LARGE
            asked.append(training.resize(size))
            go_on(size, STEPS, asked[-1])
            if len(asked) % 10 == 0:
                look(f"{len(asked)} resizes")
        go_on(SMALL, measured, asked[-1])
        look("after")
        training.finish()
    points = curve(read(job / "records"), training.launched)
    begun, ended = (at - training.launched for at in (asked[0], asked[-1]))
    return {
        "machine": machine,
        "lesson": lesson.as_dict(),
        "resizes": len(asked),
        "loaders": LOADERS,
        "figures": figures(points, begun, ended),
        "asked": [round(at - training.launched, 3) for at in asked],
        "holdings": holdings,
        "left_behind": training.left_behind,
        "exit_code": training.exit_code,
        "points": plain(thinned(points)),
    }


def _done(size: int, steps: int, begin: float) -> Callable[[list[Step]], bool | None]:
    """Whether rank 0 has done so many steps at that size since then."""
    state = {"seen": 0, "done": 0}

    def look(records: list[Step]) -> bool | None:
        fresh = records[state["seen"] :]
        state["done"] += sum(each.rank == 0 and each.size == size and each.time > begin for each in fresh)
        state["seen"] = len(records)
        return state["done"] >= steps or None

    return look


def least(looks: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """The least of each figure of each kind that all looks have."""
    kinds = [kind for kind in looks[0] if all(kind in each for each in looks)]
    return {kind: {key: min(each[kind][key] for each in looks) for key in looks[0][kind]} for kind in kinds}


def _told(found: Mapping[str, Mapping[str, float]]) -> str:
    return ", ".join(f"{kind} {each['processes']} with {each['memory']:.0f} MiB" for kind, each in found.items())


def figures(points: Sequence[Point], begun: float, ended: float) -> dict[str, Any]:
    """Pace before the first resize and after the last, and the pauses at resizes. Times in seconds."""
    before = [point for point in points if point.seconds < begun]
    after = [point for point in points if point.seconds > ended]
    # The first steps are those of a machine that still starts things.
    first, last = (pace(each[len(each) // 5 :], SMALL) for each in (before, after))
    return {"before": round(first, 6), "after": round(last, 6), "ratio": round(last / first, 4)}


def present(raw: Mapping[str, Any]) -> Document:
    """What the raw data says."""
    found, holdings = raw["figures"], raw["holdings"]
    first, last = holdings[0], holdings[-1]
    early = next((each for each in holdings if each["resizes"]), last)
    late = next((each for each in holdings if each["resizes"] == raw["resizes"]), last)
    processes = [whole(each, "processes") for each in (first, last)]
    files = [whole(each, "descriptors", but="loaders") for each in (first, last)]
    memory = [whole(each, "memory") for each in (early, late)]
    grown = memory[1] / memory[0]
    lead = (
        f"A training with {raw['loaders']} loader workers a rank was resized {raw['resizes']} times, from {SMALL} "
        f"ranks to {LARGE} and back. A step took {found['ratio']:.3f} times as long afterwards. Processes went from "
        f"{processes[0]:.0f} to {processes[1]:.0f}. Memory was {memory[0]:.0f} MiB after {early['resizes']} resizes, "
        f"and {memory[1]:.0f} MiB after {late['resizes']}."
    )
    return Document(
        NAME,
        "Leaks: what many resizes leave",
        lead,
        (
            Goal("step time after by before", f"{found['ratio']:.3f}", f"at most {MOST}", found["ratio"] <= MOST),
            Goal("processes", _change(processes), "no more than before", processes[1] <= processes[0]),
            Goal("open files, without loaders", _change(files), "no more than before", files[1] <= files[0]),
            Goal(
                f"memory (PSS) after {late['resizes']} resizes by after {early['resizes']}",
                f"{grown:.3f}",
                f"at most {MOST_MEMORY} (our own)",
                grown <= MOST_MEMORY,
            ),
            Goal("processes left at the end", str(raw["left_behind"]), "0", raw["left_behind"] == 0),
        ),
        (_table(holdings),),
        (_paces(raw), _memory(holdings)),
        _METHOD,
        (
            f"No faults: {raw['resizes']} planned resizes, each asked for {STEPS} steps after the first at the size "
            "before.",
        ),
        _LIMITS,
        raw["machine"],
    )


def whole(holding: Mapping[str, Any], key: str, but: str = "") -> float:
    """A figure of all kinds of processes, but for one."""
    return float(sum(each[key] for kind, each in holding["held"].items() if kind != but))


def _change(figures: Sequence[float]) -> str:
    return " → ".join(f"{each:.0f}" for each in figures)


def _table(holdings: Sequence[Mapping[str, Any]]) -> Table:
    kinds = sorted({kind for each in holdings for kind in each["held"]})
    head = ("resizes done", *(f"{kind}: processes, files, MiB" for kind in kinds))
    rows = []
    for each in holdings:
        cells = (each["held"].get(kind, {"processes": 0, "descriptors": 0, "memory": 0.0}) for kind in kinds)
        told = (f"{cell['processes']}, {cell['descriptors']}, {cell['memory']:.0f}" for cell in cells)
        rows.append((str(each["resizes"]), *told))
    return Table(head, tuple(rows))


def _paces(raw: Mapping[str, Any]) -> Chart:
    loss = smoothed("loss", [(point[0], point[3]) for point in raw["points"]], raw["asked"])
    return Chart("Loss over time", "seconds since the launch", "loss of a byte, mean of 20 points", (loss,), "resize")


def _memory(holdings: Sequence[Mapping[str, Any]]) -> Chart:
    kinds = sorted({kind for each in holdings for kind in each["held"]})
    curves = [
        smoothed(
            kind, [(each["seconds"], each["held"].get(kind, {}).get("memory", 0.0)) for each in holdings], mean_of=1
        )
        for kind in kinds
    ]
    return Chart("Memory by kind of process", "seconds since the launch", "MiB (PSS)", tuple(curves))


_METHOD = (
    "The engine `torch` in place, `DistributedDataParallel`, `GlobalBatches(num_workers=2)`, a commit at every step. "
    "The model is that of the faults.",
    f"The pace is the median time of a step with {SMALL} ranks: of {MEASURED} steps before the first resize, and as "
    "many after the last. The first fifth of each is left out.",
    "Processes, open files and memory are those of the launcher and all its descendants. Files of batches that are on "
    "their way from a loader to its rank are left out: their number changes from moment to moment. Memory is PSS, so "
    f"that shared pages count once. Of {LOOKS} looks a fifth of a second apart, the least counts.",
    "The small size is the same before and after, so a rank of that size has lived through all resizes.",
    "`make evidence ONLY=leaks` does it again.",
)
_LIMITS = (
    "Loader workers are new after each resize. Files of theirs that grow from one resize to the next are inherited "
    "from a rank, and counted there.",
    "The loader workers before the first resize were forked from ranks that had not trained yet. Later ones share less "
    "of their memory with a rank, so their PSS grows once. What counts is that it does not grow further.",
    "One run on one machine. A leak of less than a per cent of the memory in 50 resizes does not show.",
    "Three ranks share the cores of this machine. The step at the large size is not compared.",
)
