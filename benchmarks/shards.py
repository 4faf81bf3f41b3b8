"""Count shards that are lost or repeated in what is committed, while ranks are killed and resized.

::

    .venv-trainer/bin/python benchmarks/shards.py --rounds 20 --engine torch --engine horovod
    .venv-trainer/bin/python benchmarks/shards.py --rounds 3 --calm

Each round trains over 10,000 shards by ``Shards`` of each mode and of a stream, and the first ones by a plain
``DistributedSampler``, too. Every other worker takes three times as long for a shard. Every few seconds, a rank is
killed or another size asked for, unless the round is calm. The state counts how often each shard is in it
(``tests/local/scripts/counted.py``), so the last one says what was committed.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "images/trainer/src")]

from elastic_runtime.run.spec import RecoverySpec  # noqa: E402
from elastic_runtime.run.status import EventKind, Phase  # noqa: E402
from tests.local.harness import ScriptedRun  # noqa: E402
from tests.paced import Script  # noqa: E402

COUNT, SECONDS = 10_000, 0.004
"""Shards, and the time that one takes on a fast worker."""
CALM_COUNT, CALM_SECONDS = 2000, 0.02
"""The same where nothing is disturbed, to measure the time."""
APART = 1.0
"""Seconds between two meetings of asynchronous ranks."""
EVERY = 3.0, 6.0
"""Seconds between two disturbances."""
DISTURBANCES = 12
"""Of a training, which goes on to its end afterwards."""
MOST = 4
"""Workers."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one training."""

    seconds: float
    worlds: int
    kills: int
    lost: int
    """Shards that are not in the last commit."""
    repeated: int
    """Shards that are in it more than once."""
    by_slow: float
    """Part of all shards that slow workers were given."""


def train(folder: Path, engine: str, rng: random.Random, by: str, per_step: int, *, calm: bool) -> Outcome:
    """Once over all shards."""
    count, seconds = (CALM_COUNT, CALM_SECONDS) if calm else (COUNT, SECONDS)
    environment = {"SHARDS": json.dumps([count, APART if by == "asynchronous" else per_step, seconds, by])}
    recovery = RecoverySpec(backoff=0.1, rank_failures=1000)
    run = ScriptedRun(
        folder, Script("counted.py"), (1, 3, MOST), environment=environment, engine=engine, recovery=recovery
    )
    kills = 0
    try:
        run.start()
        run.trains(3)
        begun = time.monotonic()
        for _ in range(0 if calm else DISTURBANCES):
            time.sleep(rng.uniform(*EVERY))
            if run.is_over():
                break
            status = run.status()
            if status.world_size > 1 and rng.random() < 0.5:
                with suppress(AssertionError, ProcessLookupError, IndexError):  # That world is over already.
                    run.kill_rank(rng.randrange(status.world_size))
                    kills += 1
            else:
                run.resize(rng.randint(2, MOST))
        status = run.end(max_wait=1200.0)
        if status.phase is not Phase.SUCCEEDED:
            raise SystemExit(run.report("no success"))
        files = {each.name: each.read_text().splitlines() for each in (folder / "notes").iterdir()}
        notes = {name: [json.loads(line) for line in lines] for name, lines in files.items()}
        counts = next(note["counts"] for each in notes.values() for note in each if "counts" in note)
        taken = {name: sum("took" in note for note in each) for name, each in notes.items()}
        slow = sum(times for name, times in taken.items() if int(name.split(".")[0].rpartition("-")[2]) % 2)
        worlds = sum(event.kind is EventKind.SCALED for event in status.events) + 1
        return Outcome(
            time.monotonic() - begun,
            worlds,
            kills,
            sum(each == 0 for each in counts),
            sum(each > 1 for each in counts),
            slow / sum(taken.values()),
        )
    finally:
        run.close()
        shutil.rmtree(folder)


def main() -> None:
    """Run the rounds, with a line for each training."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--plain-rounds", type=int, default=3, help="rounds that also train by a DistributedSampler")
    parser.add_argument("--engine", action="append", choices=["torch", "horovod"], help="default: torch")
    modes = ["synchronous", "asynchronous", "stream"]
    parser.add_argument("--mode", action="append", choices=modes, help="default: all")
    parser.add_argument("--per-step", type=int, default=40, help="shards of a synchronous step")
    parser.add_argument("--calm", action="store_true", help="without disturbances")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)  # noqa: S311
    ways = options.mode or modes
    print("engine   by            round  seconds  worlds  kills  lost  repeated  by slow workers", flush=True)
    with tempfile.TemporaryDirectory() as base:
        for engine in options.engine or ["torch"]:
            for round_ in range(options.rounds):
                for by in [*ways, "sampler"] if round_ < options.plain_rounds else ways:
                    found = train(Path(base, "round"), engine, rng, by, options.per_step, calm=options.calm)
                    print(
                        f"{engine:8} {by:13} {round_:5}  {found.seconds:7.1f}  {found.worlds:6}  {found.kills:5}  "
                        f"{found.lost:4}  {found.repeated:8}  {found.by_slow:.2f}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
