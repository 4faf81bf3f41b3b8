"""Random faults on runs of this machine, or in a Slurm, Ray, Spark or Kubernetes on it.

Their weights have to be those of an undisturbed run, bit for bit. So has each rank's whole state after every fifth
step, with optimizers and averages of weights.

Each round is a run with faults that follow from its seed: `--seed 17 --rounds 1` plays round 17 again, and `--plan
FILE` what a file has kept of a round. Times are the machine's, so a race may need several tries (`--repeat`). A round
that goes wrong keeps its folder, the others only a page of JSON.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from benchmarks.harness.processes import become_subreaper, end_descendants, handle_sigterm
from elastic_runtime.documents import from_json, to_json
from tests.chaos.jobs import JOBS, Job
from tests.chaos.judge import Expected, apart, judge
from tests.chaos.load import busy_loops
from tests.chaos.places import PLACES
from tests.chaos.plan import FaultKind, Plan, plan_of
from tests.chaos.report import Judged, line, table
from tests.chaos.round import Round, play, undisturbed

BUILD = Path(__file__).resolve().parents[2] / "build" / "chaos"
MOST_SEEDS = 1_000_000
ENGINES = {job.engine: job for job in JOBS}


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 when anything was wrong."""
    options = _parse(arguments)
    # As ctrl-C: unwinds to the `finally` below, and to every round's own end.
    handle_sigterm()
    become_subreaper()
    folder: Path = options.output / time.strftime("%Y%m%d-%H%M%S")
    folder.mkdir(parents=True)
    judged: list[Judged] = []
    with PLACES[options.place](folder) as place, busy_loops(options.load), _pool(options.jobs) as pool:
        engines = options.engine or [job.engine for job in JOBS if place.own_engines or not job.kind.path]
        plans = _plans(options, place.faults) * options.repeat
        print(f"{len(plans)} rounds of {', '.join(engines)} from seed {plans[0].seed}, in {folder}", flush=True)
        jobs = [replace(ENGINES[name], place=place) for name in engines]
        try:
            for each in _play_all(pool, jobs, plans, folder, options.minutes):
                judged.append(each)
                print(line(each, len(judged), len(plans) * len(jobs)), flush=True)
        finally:
            if judged:
                print("\n".join(["", *table(judged)]), flush=True)
    return int(any(each.verdict.troubles for each in judged))


@contextmanager
def _pool(workers: int) -> Iterator[ThreadPoolExecutor]:
    """Whose rounds end when this is left, whatever they have come to: their processes are ended."""
    pool = ThreadPoolExecutor(workers)
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        end_descendants()
        pool.shutdown()


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20, help="of each engine (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="of the first round; each next one has the next (default: any)")
    parser.add_argument(
        "--plan", type=Path, action="append", help="a round's JSON, to be played again; may be repeated"
    )
    parser.add_argument(
        "--place",
        choices=list(PLACES),
        default="local",
        help="where runs are; other than local: through tools/PLACE with --, kubernetes: tools/cluster with --",
    )
    parser.add_argument("--repeat", type=int, default=1, help="play each round so often (default: %(default)s)")
    parser.add_argument(
        "--engine", action="append", choices=list(ENGINES), help="may be repeated (default: all, in turns)"
    )
    parser.add_argument("--jobs", type=int, default=1, help="rounds side by side (default: %(default)s)")
    parser.add_argument("--load", type=int, default=0, help="busy loops beside them (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no round after so long")
    parser.add_argument("--output", type=Path, default=BUILD, help="folder (default: build/chaos)")
    return parser.parse_args(arguments)


def _plans(options: argparse.Namespace, kinds: Sequence[FaultKind]) -> list[Plan]:
    if options.plan:
        return [from_json(Round, path.read_text(encoding="utf-8")).plan for path in options.plan]
    # Not for secrets.
    first = random.randrange(MOST_SEEDS - options.rounds) if options.seed is None else options.seed
    return [plan_of(seed, kinds) for seed in range(first, first + options.rounds)]


def _play_all(
    pool: ThreadPoolExecutor, jobs: Sequence[Job], plans: Sequence[Plan], folder: Path, minutes: float
) -> Iterator[Judged]:
    """Engine by engine in turns, so that all come up however soon this is ended."""
    deadline = time.monotonic() + 60 * minutes
    expected = {job: undisturbed(job, folder) for job in jobs}
    if without := [job.engine for job in jobs if not expected[job].digests]:
        raise SystemExit(f"the undisturbed run of {', '.join(without)} has no digests")

    def round_of(number: int, plan: Plan, job: Job) -> Judged | None:
        # Names are equally long, so that none begins with another: processes are recognised by them.
        base = folder / f"{job.engine}-{plan.seed:06}-{number:04}"
        return _keep(play(job, plan, base)[0], expected[job], base) if time.monotonic() < deadline else None

    rounds = [(number, plan, job) for number, plan in enumerate(plans, start=1) for job in jobs]
    for future in as_completed([pool.submit(round_of, *each) for each in rounds]):
        if judged := future.result():
            yield judged


def _keep(played: Round, expected: Expected, base: Path) -> Judged:
    """Judge it, write it down, and remove what is of no use any more."""
    verdict = judge(played.outcome, played.applied, expected)
    others = tuple(apart(played.outcome.digests, expected))
    digested = len(played.outcome.digests)
    played = replace(played, digested=digested, outcome=replace(played.outcome, digests=others))
    judged = Judged(played, verdict)
    base.with_suffix(".json").write_text(to_json(played) + "\n", encoding="utf-8")
    if not judged.verdict.troubles:
        shutil.rmtree(base)
    return judged


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
