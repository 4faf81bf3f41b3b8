"""Standstills in runs of this machine: is the right rank named, and does the training go on in place?

Each round is a run of three ranks, one of which stands still once, in a way and at a step that follow from the round's
seed: see ``tests/local/scripts/standing_still.py``. The weights at the end have to be those of an undisturbed run, and
so has each rank's whole state after every fifth step. ``--calm`` has runs that take long in between, and do not
stand still.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from benchmarks.harness.processes import become_subreaper, end_descendants, handle_sigterm
from elastic_runtime.documents import to_json
from tests.chaos.jobs import JOBS, RESTARTED, Job
from tests.chaos.judge import Expected, judge
from tests.chaos.load import busy_loops
from tests.chaos.plan import MAXIMUM, Fault, FaultKind, Plan, Stand
from tests.chaos.round import play, undisturbed
from tests.chaos.stood import ALARMS, FAILS, GOES_ON, Found, Seen, alarms, find
from tests.engines.kinds import HUB
from tests.local.harness import ScriptedRun

BUILD = Path(__file__).resolve().parents[2] / "build" / "standstills"
WAYS = ("skip", "more", "stop", "loader", "dead-loader", "lock", "loop", "store", "breakpoint", "sleep", "fifo")
RANKS = 3
EPOCHS = 6
CALM_EPOCHS, CALM_LIMIT = 24, 400.0
"""The same of a run without a standstill, and the seconds that it may take."""
STEPS = (8, 20)
"""After which a rank stands still."""
STANDSTILL = 5.0
"""Seconds: ``recovery.standstill``."""
WINDOW = 15.0
"""Seconds: ``recovery.window`` of calm rounds, so that stragglers are looked for in worlds that last no longer."""
ENGINES = {job.engine: replace(job, epochs=EPOCHS) for job in (*JOBS, *RESTARTED) if job.kind is not HUB}


@dataclass(frozen=True, slots=True)
class Played:
    """A round and what became of it."""

    engine: str
    plan: Plan
    found: Found

    @property
    def way(self) -> str:
        return self.plan.stand.way if self.plan.stand else ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 when anything was wrong."""
    options = _parse(arguments)
    handle_sigterm()
    become_subreaper()
    folder: Path = options.output / time.strftime("%Y%m%d-%H%M%S")
    folder.mkdir(parents=True)
    first = random.randrange(1_000_000) if options.seed is None else options.seed  # Not for secrets.
    print(f"{options.rounds} rounds of {', '.join(options.engine)} from seed {first}, in {folder}", flush=True)
    played: list[Played] = []
    with busy_loops(options.load):
        try:
            if options.calm:
                return _calm(options.engine, first, options.calm, folder)
            for engine in options.engine:
                expected = undisturbed(ENGINES[engine], folder)
                ways = [way for way in options.way if is_possible(way, ENGINES[engine])]
                for seed in range(first, first + options.rounds if ways else first):
                    played.append(_play(ENGINES[engine], plan_of(seed, ways), expected, folder))
                    print(line(played[-1]), flush=True)
        finally:
            end_descendants()
            if played:
                print("\n".join(["", *table(played)]), flush=True)
    return int(any(each.found.troubles for each in played))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.standstills",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=20, help="of each engine (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="of the first round; each next one has the next (default: any)")
    parser.add_argument("--engine", action="append", choices=list(ENGINES), help="may be repeated (default: all)")
    parser.add_argument("--way", action="append", choices=WAYS, help="may be repeated (default: all, in turns)")
    parser.add_argument("--calm", type=float, metavar="MINUTES", help="runs without a standstill instead, for so long")
    parser.add_argument("--load", type=int, default=0, help="busy loops beside them (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=BUILD, help="folder (default: build/standstills)")
    options = parser.parse_args(arguments)
    options.engine, options.way = options.engine or list(ENGINES), options.way or list(WAYS)
    return options


def is_possible(way: str, job: Job) -> bool:
    """Whether such a training goes on: a script that is restarted has no thread that writes, and a failure ends it."""
    return not job.kind.restarts or way not in (*GOES_ON, *FAILS)


def plan_of(seed: int, ways: Sequence[str] = WAYS) -> Plan:
    """Return the round of this seed."""
    chance, way = random.Random(seed), ways[seed % len(ways)]  # Not for secrets.
    rank = 0 if way == "store" else chance.randrange(RANKS)
    stand = Stand(way, chance.randint(*STEPS), rank)
    return Plan(seed, start=RANKS, maximum=RANKS, stand=stand, standstill=STANDSTILL)


def _play(job: Job, plan: Plan, expected: Expected, folder: Path) -> Played:
    """Play it, judge it, and remove what is of no use any more."""
    assert plan.stand is not None
    base = folder / f"{job.engine}-{plan.seed:06}"
    played, run = play(job, plan, base)
    seen = Seen(_notes(run), run.status(), run.log())
    found = find(plan.stand.way, 2 * STANDSTILL, seen, restarts=job.kind.restarts)
    verdict = replace(judge(played.outcome, (), expected), pause="")  # The bound has been judged.
    found = replace(found, troubles=(*found.troubles, *verdict.troubles))
    base.with_suffix(".json").write_text(to_json(replace(played, outcome=replace(played.outcome, digests=()))) + "\n")
    if not found.troubles:
        shutil.rmtree(base)
    return Played(job.engine, plan, found)


def calm_plan(seed: int) -> Plan:
    """Return the round of this seed without a standstill: sizes, and notices in time."""
    chance, faults, at = random.Random(seed), list[Fault](), 0.0  # Not for secrets.
    for _ in range(6):
        at += chance.uniform(4.0, 15.0)
        size = chance.randint(1, MAXIMUM)
        notice = Fault(at, FaultKind.NOTICE, chance.random(), seconds=20.0)
        faults.append(notice if chance.random() < 0.3 else Fault(at, FaultKind.RESIZE, size=size))
    return Plan(seed, start=RANKS, faults=tuple(faults), standstill=STANDSTILL, window=WINDOW)


def _calm(engines: Sequence[str], first: int, minutes: float, folder: Path) -> int:
    """Play such rounds, engine by engine in turns. Return 1 if there was an alarm, or one is wrong."""
    jobs = [replace(ENGINES[engine], epochs=CALM_EPOCHS) for engine in engines if not ENGINES[engine].kind.restarts]
    expected = {job.engine: undisturbed(job, folder) for job in jobs}
    begin, bad = time.monotonic(), 0
    for seed in itertools.count(first):
        job = replace(jobs[(seed - first) % len(jobs)], uneven=True)
        base = folder / f"{job.engine}-{seed:06}"
        played, run = play(job, calm_plan(seed), base, CALM_LIMIT)
        told = alarms(run.status(), ALARMS)
        verdict = replace(judge(played.outcome, played.applied, expected[job.engine]), pause="")
        troubles = [*told, *verdict.troubles]
        bad += bool(troubles)
        passed = (time.monotonic() - begin) / 60
        print(
            f"{passed:5.1f} min  {job.engine:<16} seed {seed:06} {played.seconds:5.0f} s  worlds {len(played.worlds)}  "
            f"load {os.getloadavg()[0]:4.1f}  {_words(troubles)}",
            flush=True,
        )
        if not troubles:
            shutil.rmtree(base)
        if passed > minutes:
            print(f"{seed - first + 1} rounds, {bad} wrong", flush=True)
            return int(bad > 0)
    raise AssertionError("endless")


def _notes(run: ScriptedRun) -> list[dict[str, object]]:
    """As :meth:`ScriptedRun.notes`, each with the process that has written it."""
    files = sorted((run.base / "notes").iterdir())
    return [
        {"pid": int(file.stem.rpartition("-")[2]), **json.loads(each)}
        for file in files
        for each in file.read_text(encoding="utf-8").splitlines()
    ]


def line(played: Played) -> str:
    """Of one round, as soon as it is over."""
    stand, found = played.plan.stand, played.found
    assert stand is not None
    seconds = "never" if found.seconds is None else f"{found.seconds:5.1f} s"
    load = os.getloadavg()[0]
    return (
        f"{played.engine:<16} seed {played.plan.seed:06}  {stand.way:<12} rank {stand.rank} after step {stand.step:<3} "
        f"{seconds}  load {load:4.1f}  {_words(found.troubles)}"
    )


def _words(troubles: Sequence[str]) -> str:
    return f"WRONG: {'; '.join(troubles)}" if troubles else "right"


def table(played: Sequence[Played]) -> Iterator[str]:
    """Of all rounds, one line for each way and engine."""
    yield f"{'engine':<16}{'standstill':<14}{'rounds':>8}{'right':>8}{'seconds':>10}{'most':>8}"
    for engine in dict.fromkeys(each.engine for each in played):
        for way in (*WAYS, ""):
            rounds = [each for each in played if each.engine == engine and way in ("", each.way)]
            times = [each.found.seconds for each in rounds if each.found.seconds is not None]
            if rounds:
                right = sum(not each.found.troubles for each in rounds)
                seconds = f"{median(times):>10.1f}{max(times):>8.1f}" if times else ""
                yield f"{engine:<16}{way or 'all':<14}{len(rounds):>8}{right:>8}{seconds}"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
