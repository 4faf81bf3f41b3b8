"""All benchmarks, one after the other, and the page of their results. See README.md in this folder."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))

from benchmarks.harness.sections import PAGE, RESULTS, Section  # noqa: E402  # the path above has to be there first
from benchmarks.plots.page import write_page  # noqa: E402

STATE = ROOT / "build" / "bench" / "everything.json"
LEFT_OUT = 3
"""Exit status of a benchmark that has said why this machine cannot run it."""
_RESULTS = (f":!benchmarks/{RESULTS}", f":!benchmarks/{PAGE}", ":!benchmarks/*.html")
_MEASURED = ("benchmarks", "images", "provider", *_RESULTS)


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One program, which writes its own section."""

    section: Section
    command: tuple[str, ...]
    """Under :data:`ROOT`; the first is the interpreter's environment."""
    minutes: int
    """That it takes on two cores."""


BENCHMARKS = (
    Benchmark(Section.LAUNCHER, (".venv-trainer", "run.py", "--rounds", "5"), 15),
    Benchmark(Section.TRACES, (".venv-trainer", "replay.py"), 1),
    Benchmark(Section.TORCH, (".venv-trainer", "torch_peers.py", "--rounds", "5"), 80),
    Benchmark(Section.SHARDED, (".venv-trainer", "sharded_peers.py", "--rounds", "5"), 25),
    Benchmark(Section.CHECKPOINTS, (".venv-trainer", "checkpoints.py"), 15),
    Benchmark(Section.DEFERRED_RUNS, (".venv", "deferred_runs.py"), 30),
    Benchmark(Section.STATUS, (".venv-trainer", "status_load.py"), 5),
    Benchmark(Section.WORKERS, (".venv-trainer", "many_workers.py"), 5),
    Benchmark(Section.PAGE, (".venv", "page_load.py"), 2),
)


@dataclass(frozen=True, slots=True)
class Run:
    """How one of them has ended."""

    outcome: str
    """``done``, ``failed``, or ``left out``, which its own words explain."""
    minutes: float
    load: float
    """Average load of the minute before it began: others' work, unless it follows another."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is not done on this code; exit status 1 when something failed or was left out."""
    options = _parse(arguments)
    code = _code()
    runs = {} if options.again else _runs_before(code)
    wanted = [each for each in BENCHMARKS if not options.only or each.section in options.only]
    for each in wanted:
        if (before := runs.get(each.section)) is not None and before.outcome == "done":
            print(f"{each.section}: done on this code before, in {before.minutes:.0f} minutes", flush=True)
            continue
        print(f"{each.section}: begun, some {each.minutes} minutes", flush=True)
        runs[each.section] = _run(each)
        _keep(code, runs)
    write_page(HERE)
    return _tell(wanted, runs)


def _run(benchmark: Benchmark) -> Run:
    environment, script, *options = benchmark.command
    command = [str(ROOT / environment / "bin" / "python"), str(HERE / script), *options]
    load, began = os.getloadavg()[0], time.monotonic()
    status = subprocess.run(command, check=False, cwd=ROOT).returncode
    if status == 130:  # ctrl-C: what is done is kept for the next call.
        raise SystemExit(status)
    outcome = {0: "done", LEFT_OUT: "left out"}.get(status, "failed")
    return Run(outcome, (time.monotonic() - began) / 60, load)


def _code() -> str:
    """The newest commit of what is measured, and whether something is not committed."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], check=True, cwd=ROOT, capture_output=True, text=True).stdout.strip()

    newest = git("log", "-1", "--format=%H", "--", *_MEASURED)
    return newest + (" with changes" if git("status", "--porcelain", "--", *_MEASURED) else "")


def _runs_before(code: str) -> dict[str, Run]:
    if not STATE.exists():
        return {}
    kept = json.loads(STATE.read_text())
    return {name: Run(**run) for name, run in kept["runs"].items()} if kept["code"] == code else {}


def _keep(code: str, runs: Mapping[str, Run]) -> None:
    STATE.parent.mkdir(parents=True, exist_ok=True)
    STATE.write_text(json.dumps({"code": code, "runs": {name: asdict(run) for name, run in runs.items()}}, indent=2))


def _tell(wanted: Sequence[Benchmark], runs: Mapping[str, Run]) -> int:
    print("\nsection         outcome    minutes  load before")
    for each in wanted:
        run = runs[each.section]
        print(f"{each.section:15} {run.outcome:10} {run.minutes:7.1f}  {run.load:.2f}")
    missing = [each.section for each in wanted if runs[each.section].outcome != "done"]
    if missing:
        print(f"Not measured on this code: {', '.join(missing)}. Their sections are as they were.")
    return 1 if missing else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    known = [each.section for each in BENCHMARKS]
    parser.add_argument(
        "--only", type=Section, choices=known, action="append", default=[], metavar="SECTION",
        help=f"only this section, may be repeated: {', '.join(known)}",
    )  # fmt: skip
    parser.add_argument("--again", action="store_true", help="also what is done on this code already")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
