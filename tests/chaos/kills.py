"""One rank after another is killed at a random moment: how many survivors go with them?

A single run of three ranks, which are three again before the next kill, or two, or still forming their world: that is
random, too. Without the amendment of ``images/trainer/patches`` a survivor ends with SIGABRT now and then.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness.processes import become_subreaper, end_descendants, handle_sigterm
from elastic_runtime.clock import utc_now
from elastic_runtime.run.spec import RecoverySpec
from elastic_runtime.run.status import EventKind
from tests.chaos.load import busy_loops
from tests.engines.kinds import HOROVOD, TORCH
from tests.local.harness import ScriptedRun
from tests.paced import Script

SCRIPTS = {kind.engine: kind.script for kind in (HOROVOD, TORCH)}
RANKS = 3
SOONEST, LATEST = 0.05, 1.5
"""Seconds from one kill to the next: the survivors are on their way back, wait for the newcomer, or train with it."""
SAY_EVERY = 25
"""Kills."""
STALL = 15.0
"""Seconds without two ranks, which is worth a line of its own."""
RUN_TIMEOUT = 180.0
"""Seconds; the launcher forms a world anew that has not come about after 120."""


def main() -> int:
    """Exit status 1 when a survivor was aborted, or a run did not go on."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=300, help="(default: %(default)s)")
    parser.add_argument("--load", type=int, default=2, help="busy loops beside the run (default: %(default)s)")
    parser.add_argument("--engine", choices=list(SCRIPTS), default="horovod", help="(default: %(default)s)")
    # Not for secrets.
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="of the moments and the ranks")
    options = parser.parse_args()
    print(f"{options.kills} kills beside {options.load} busy loops, seed {options.seed}", flush=True)
    handle_sigterm()
    become_subreaper()
    with tempfile.TemporaryDirectory(prefix="kills-") as folder, busy_loops(options.load):
        try:
            return _play(Path(folder), options.kills, options.engine, random.Random(options.seed))
        finally:
            end_descendants()


def _play(base: Path, kills: int, engine: str, chance: random.Random) -> int:
    run = ScriptedRun(
        base,
        Script(SCRIPTS[engine], epochs=1_000_000, step_seconds=0.01),
        (1, RANKS, RANKS),
        engine=engine,
        recovery=RecoverySpec(backoff=0.1, backoff_maximum=0.1, rank_failures=1_000_000),
    )
    run.max_wait = RUN_TIMEOUT
    begin = time.monotonic()
    run.start()
    try:
        run.until_status(lambda status: status.world_size == RANKS, "the first world")
        for count in range(1, kills + 1):
            time.sleep(chance.uniform(SOONEST, LATEST))
            _kill_one(run, chance)
            if count % SAY_EVERY == 0 or count == kills:
                print(
                    f"{time.monotonic() - begin:5.0f} s  {count} kills, {_aborted(run)} survivors aborted", flush=True
                )
        run.until_status(lambda status: status.world_size == RANKS, "a last world of all")
        log = run.log()
        restarts = run.events(EventKind.RESTARTED)
        print(f"lost all ranks at once {len(restarts)} times; Gloo's words: {_terminated(log) or 'none'}")
        return int(_aborted(run) > 0)
    finally:
        run.close()


def _kill_one(run: ScriptedRun, chance: random.Random) -> None:
    """Of two at least, so that one survives."""

    def of_two() -> list[int] | None:
        pids = [pid for worker in run.status().workers for pid in worker.pids[1:]]
        return pids if len(pids) > 1 else None

    while True:
        begin = time.monotonic()
        pid = chance.choice(run.until(of_two, "two ranks"))
        if (seconds := time.monotonic() - begin) > STALL:
            print(f"        {seconds:.0f} s without two ranks, until {utc_now():%H:%M:%S}", flush=True)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        return


def _aborted(run: ScriptedRun) -> int:
    return run.log().count("ended with SIGABRT")


def _terminated(log: str) -> list[str]:
    return sorted({line.partition("what():")[2].strip() for line in log.splitlines() if "what():" in line})


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
