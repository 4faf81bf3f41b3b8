"""How much of its training time a run keeps while a rank, a worker or a notice hits it every half minute.

Eight ranks under torch.distributed, in place, synchronous and exact: a small model with a real all-reduce and a commit
at every step. The computation of a step is a wait, in the place of a GPU's kernels, since eight ranks share this
machine's cores: as long as ``--computing`` says with all ranks, and longer in proportion with fewer. Launcher, agents
and the replacements' warm starts do count; that they have few cores here counts against the run.

The same training runs first for a while with nobody disturbing it, which gives its pace, and all its steps once more
without the waits, which gives its weights. Kept is the share of the time in which the undisturbed run would have done
the same steps.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import psutil

from benchmarks.harness.processes import become_subreaper, end_descendants, handle_sigterm
from tests.chaos.account import Moments, Share, WholeStep, account, pace, whole_steps
from tests.chaos.jobs import STEPS_AN_EPOCH, Job
from tests.chaos.plan import Fault, FaultKind, Plan
from tests.chaos.round import Round, play
from tests.engines.kinds import TORCH_IN_PLACE
from tests.local.harness import ScriptedRun

BUILD = Path(__file__).resolve().parents[2] / "build" / "chaos-bar"
RANKS = 8
GOAL = 0.97
CLOSE = 1e-5
"""Largest difference of a weight at the end."""
KINDS = (FaultKind.KILL_RANK, FaultKind.KILL_RANK, FaultKind.KILL_AGENT, FaultKind.NOTICE)
"""In turns."""
NOTICE = 30.0
"""Seconds."""
REFERENCE = 60.0
"""Seconds of the undisturbed run."""
LIMIT = 1.5
"""Times the planned length, after which a run is given up; and :data:`SETTLING` seconds."""
SETTLING = 120.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 when the goal is missed, or the weights are others."""
    options = _parse(arguments)
    handle_sigterm()
    become_subreaper()
    folder: Path = options.output / time.strftime("%Y%m%d-%H%M%S")
    folder.mkdir(parents=True)
    print(f"seed {options.seed}, in {folder}, load average {os.getloadavg()[0]:.1f}", flush=True)
    try:
        return _measure(folder, 60 * options.minutes, options)
    finally:
        end_descendants()


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.bar", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="of disturbed training (default: %(default)s)")
    parser.add_argument("--every", type=float, default=29.0, help="seconds between faults (default: %(default)s)")
    parser.add_argument("--computing", type=float, default=0.1, help="seconds of a step (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of whom the faults hit (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=BUILD, help="folder (default: build/chaos-bar)")
    return parser.parse_args(arguments)


def faults(seconds: float, every: float, seed: int) -> tuple[Fault, ...]:
    """One after another, the last of them early enough to be recovered from."""
    chance = Random(seed)  # Not for secrets.
    count = max(int(seconds / every - 0.5), 0)
    kinds = [KINDS[number % len(KINDS)] for number in range(count)]
    return tuple(
        Fault(every * number, kind, chance.random(), NOTICE if kind.notices else 0.0)
        for number, kind in enumerate(kinds, start=1)
    )


def _measure(folder: Path, seconds: float, options: argparse.Namespace) -> int:
    slow = {"LEARNING_RATE": "0.001"}  # With which the weights stay small however long it trains.
    job = Job(TORCH_IN_PLACE, durable=True, step_seconds=options.computing, environment=slow, ranks=RANKS)
    plan = Plan(seed=options.seed, start=RANKS, maximum=RANKS, checkpoint_every=60.0, backoff=1.0)

    reference = replace(job, epochs=_epochs(REFERENCE, 1.2 * options.computing))
    undisturbed = pace(_steps(_played(reference, plan, folder / "undisturbed", REFERENCE)[1]))
    print(f"undisturbed: {1000 * undisturbed:.1f} ms a step", flush=True)

    job = replace(job, epochs=_epochs(seconds, undisturbed))
    quick = replace(job, step_seconds=0.0)
    expected = _played(quick, replace(plan, start=2, maximum=2), folder / "weights", seconds)[0].outcome.weights
    print(f"{job.epochs * STEPS_AN_EPOCH} steps to do; load average {os.getloadavg()[0]:.1f}", flush=True)

    busy = _busy()
    disturbed = replace(plan, faults=faults(seconds, options.every, options.seed))
    played, run = _played(job, disturbed, folder / "disturbed", seconds)
    steps = _steps(run)
    shares = account(steps, _moments(played, run), undisturbed, options.computing, RANKS)
    kept = shares[Share.TRAINING] / sum(shares.values())
    print("\n".join(_report(played, steps, shares, kept)), flush=True)
    print(f"processors busy {100 * (_busy() - busy) / (played.seconds * (os.cpu_count() or 1)):.0f} %")
    print(f"load average {os.getloadavg()[0]:.1f} (1 min), {os.getloadavg()[2]:.1f} (15 min)")
    difference = _difference(played.outcome.weights, expected)
    print(f"largest difference of a weight: {difference:.3g}; {played.outcome.ended or 'succeeded'}")
    return int(bool(played.outcome.ended) or difference > CLOSE or kept < GOAL)


def _epochs(seconds: float, step: float) -> int:
    return max(round(seconds / step / STEPS_AN_EPOCH), 1)


def _played(job: Job, plan: Plan, base: Path, seconds: float) -> tuple[Round, ScriptedRun]:
    return play(job, plan, base, LIMIT * seconds + SETTLING)


def _steps(run: ScriptedRun) -> list[WholeStep]:
    return whole_steps(note for note in run.notes() if "step" in note)


def _moments(played: Round, run: ScriptedRun) -> Moments:
    offset = time.time() - time.monotonic()  # Of this machine: the status tells times of day.
    notes = run.notes()
    return Moments(
        kills=sorted(applied.at for applied in played.applied if applied.fault.kind.kills),
        noticed=sorted(note["failed"] for note in notes if "failed" in note),
        worlds=[world.time.timestamp() - offset for world in run.status().history if world.size],
        entered=sorted(note["entered"] for note in notes if "entered" in note),
    )


def _busy() -> float:
    """Seconds for which this machine's processors have worked, on whatever."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


def _report(played: Round, steps: Sequence[WholeStep], shares: Mapping[Share, float], kept: float) -> list[str]:
    whole = sum(shares.values())
    return [
        f"{len(played.applied)} faults ({len(played.missed)} found nobody), {steps[-1].number} steps in {whole:.0f} s",
        f"kept {100 * kept:.2f} % (goal {100 * GOAL:.0f} %)",
        *(f"{100 * part / whole:7.2f} %  {part:7.1f} s  {share}" for share, part in shares.items()),
    ]


def _difference(weights: Sequence[float], expected: Sequence[float]) -> float:
    if not weights or len(weights) != len(expected):
        return float("inf")
    return max(abs(a - b) for a, b in zip(weights, expected, strict=True))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
