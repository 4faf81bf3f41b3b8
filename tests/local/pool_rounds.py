"""Hand-overs between two trainings of a pool, and a start in it, with their seconds: ``make pool-rounds``.

Two trainings, priorities 1 and 10, of a pool of three workers, on this machine or in pods. In each round, the second
asks for a second worker, which the first hands over, and gives it back. Exit status 0 only if the weights of both are
as without a change, and, with ``--most``, if no hand-over took longer.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from elastic_runtime.run.status import Status
from tests.local.harness import ScriptedRun
from tests.local.pooled import Pool
from tests.paced import SCRIPTS, PacedRun, Script, Undisturbed, sizes_of


def main() -> int:
    """Print one JSON object."""
    options = parse_arguments()
    with tempfile.TemporaryDirectory() as folder, _pool_in(options.place, Path(folder)) as (pool, undisturbed):
        started = start(pool)
        taken, given, problems = hand_over(pool, options.rounds, undisturbed)
    late = [seconds for seconds in (*taken, *given) if options.most and seconds > options.most]
    if late:
        problems.append(f"{len(late)} hand-overs took longer than {options.most:g} s")
    figures = {name: rounded(seconds) for name, seconds in (("taken", taken), ("given_back", given))}
    json.dump({"start": started, **figures, "problems": problems}, sys.stdout, indent=2)
    print()
    return int(bool(problems))


ROOT = Path(__file__).parents[2]
ALONE = Script("exact.py")
WORKERS = 3


class _Pool(Protocol):
    def run(self, script: Script, workers: tuple[int, int, int], priority: int) -> Any:
        """Start a run."""


@contextmanager
def _pool_in(place: str, folder: Path) -> Iterator[tuple[_Pool, Undisturbed]]:
    """Up, and warm; and the same training left alone."""
    if place == "local":
        undisturbed = train_undisturbed(ScriptedRun(folder / "undisturbed", ALONE, (2, 2, 2), engine="torch"))
        (root := folder / "pool").mkdir()
        with Pool(root, WORKERS).kept() as pool:
            yield pool, undisturbed
        return
    sys.path.append(str(ROOT / "tools"))  # As pytest does.
    from tests.kubernetes_namespace import IMAGE
    from tests.kubernetes_reclaims import pooled
    from tests.kubernetes_reclaims.conftest import NAMESPACE, shared_place

    folder.chmod(0o755)
    (root := folder / "shared").mkdir()
    with shared_place(NAMESPACE, root, IMAGE, SCRIPTS) as shared:
        undisturbed = train_undisturbed(pooled.PooledRun(shared, ALONE, (2, 2, 2), engine="torch"))
        with pooled.kept(shared, WORKERS) as up:
            in_pods = pooled.Pool(up)
            try:
                yield in_pods, undisturbed
            finally:
                in_pods.close()


def train_undisturbed(run: Any) -> Undisturbed:
    """Train with two workers to the end."""
    run.start()
    try:
        run.succeed()
        return Undisturbed.by(run)
    finally:
        run.close()


def start(pool: _Pool) -> dict[str, float]:
    """Seconds from the call that writes the spec to parts of a start, with two workers in a warm pool."""
    begun = time.time()
    run = pool.run(Script("exact.py", holds=(1,)), (2, 2, 2), 1)
    run.at(1)
    stepped = time.time()
    world = run.succeed().history[0].time.timestamp()
    ready = [line.split()[0] for line in run.log().splitlines() if "is ready" in line]
    moments = {
        "workers_ready": datetime.fromisoformat(ready[-1]).timestamp(),
        "world_complete": world,
        "first_step": stepped,
    }
    return {name: round(moment - begun, 2) for name, moment in moments.items()}


def hand_over(pool: _Pool, rounds: int, undisturbed: Undisturbed) -> tuple[list[float], list[float], list[str]]:
    """Seconds of the hand-overs each way, and what went wrong."""
    holds = tuple(range(5, 5 + 5 * rounds, 5))
    low = pool.run(Script("exact.py", holds=holds), (1, 2, 2), 1)
    low.at(holds[0])
    high = pool.run(Script("exact.py", holds=holds), (1, 1, 2), 10)
    high.at(holds[0])
    taken, given = [], []
    for hold in holds:
        low.at(hold)
        high.at(hold)
        taken.append(timed(lambda: high.resize(2), (high, 2), (low, 1)))
        given.append(timed(lambda: high.resize(1), (high, 1), (low, 2)))
        low.go(hold)
        high.go(hold)
    problems = []
    for run in (low, high):
        run.succeed()
        try:
            undisturbed.assert_same(run)
        except AssertionError as error:
            problems.append(str(error))
    return taken, given, problems


def timed(ask: Callable[[], None], *wanted: tuple[PacedRun, int]) -> float:
    """Seconds until all of these runs train with that size, in a world that is new."""
    before = [len(sizes_of(run.status())) for run, _ in wanted]
    begun = time.time()
    ask()
    ends = []
    for (run, size), worlds in zip(wanted, before, strict=True):

        def is_there(status: Status, size: int = size, worlds: int = worlds) -> bool:
            return len(status.history) > worlds and status.history[-1].size == size

        ends.append(run.until_status(is_there, f"a world of {size}").history[-1].time.timestamp())
    return max(ends) - begun


def rounded(seconds: list[float]) -> dict[str, object]:
    """For people."""
    each = [round(one, 3) for one in seconds]
    return {"median": median(each), "longest": max(each), "each": each}


def parse_arguments() -> argparse.Namespace:
    """Raises SystemExit with what is wrong."""
    parser = argparse.ArgumentParser(description="Hand-overs between two trainings of a pool.")
    parser.add_argument("--place", choices=("local", "kubernetes"), default="local", help="of the pool")
    parser.add_argument("--rounds", type=int, default=5, help="hand-overs each way, 1 to 13 (default: 5)")
    parser.add_argument("--most", type=float, default=0.0, help="seconds that one may take; 0: any (default)")
    options = parser.parse_args()
    if not 1 <= options.rounds <= 13:
        parser.error("--rounds is 1 to 13: one is at each fifth of 70 steps")
    return options


if __name__ == "__main__":
    sys.exit(main())
