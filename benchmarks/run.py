"""Our launcher against plain ``horovodrun``, side by side on this machine. See README.md in this folder."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.harness.machine import description  # noqa: E402  # the path above has to be there first
from benchmarks.harness.measures import Measure  # noqa: E402
from benchmarks.harness.processes import become_subreaper, end_descendants, heed_sigterm  # noqa: E402
from benchmarks.harness.report import as_lines, as_measures, results_of, table  # noqa: E402
from benchmarks.harness.rounds import Collected, chosen, run_scenario  # noqa: E402
from benchmarks.harness.scenarios import NORMAL, QUICK, scenarios  # noqa: E402
from benchmarks.harness.sections import Section, write_section  # noqa: E402

BUILD = HERE.parent / "build" / "bench"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for; exit status 1 when a measure has no figures."""
    options = _parse(arguments)
    begin = time.monotonic()
    # As ctrl-C: unwinds to the `finally` below, and to every training's own end.
    heed_sigterm()
    become_subreaper()
    machine = description()
    folder = BUILD / "runs" / time.strftime("%Y%m%d-%H%M%S")
    collected = Collected()

    def say(line: str) -> None:
        print(f"{time.monotonic() - begin:5.0f} s  {line}", flush=True)

    wanted = chosen(scenarios(), options.only)
    try:
        for scenario in wanted:
            rounds = options.rounds or (1 if options.quick else scenario.rounds)
            run_scenario(scenario, rounds, QUICK if options.quick else NORMAL, folder, collected, say)
    finally:
        end_descendants()
    results = results_of(collected, options.only)
    output: Path = options.output or (BUILD if options.quick or options.only else HERE)
    write_section(output, Section.LAUNCHER, as_lines(results, machine, collected.troubles), as_measures(results))
    print("\n".join(["", *table(results), "", *collected.troubles, f"Written to {output}"]))
    expected = set(options.only) or {measure for scenario in wanted for measure in scenario.measures}
    return 0 if expected == {result.measure for result in results} else 1


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, help="of every scenario (default: 3 to 5, as the scenario says)")
    parser.add_argument(
        "--only", type=Measure, choices=list(Measure), action="append", default=[], metavar="MEASURE",
        help=f"only this measure, may be repeated: {', '.join(Measure)}",
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="one round each, short waits: does it run at all?")
    parser.add_argument(
        "--output", type=Path,
        help="folder for results.json and RESULTS.md (default: this one; build/bench with --only or --quick)",
    )  # fmt: skip
    return parser.parse_args(arguments)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
