"""The command line of a comparison of two sides, and its section of the results."""

from __future__ import annotations

import argparse
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from benchmarks.harness.machine import description
from benchmarks.harness.measures import Measure
from benchmarks.harness.processes import become_subreaper, end_descendants, handle_sigterm
from benchmarks.harness.report import as_lines, as_measures, results_of, table
from benchmarks.harness.rounds import Collected, chosen, run_scenario
from benchmarks.harness.scenarios import NORMAL, QUICK, Scenario
from benchmarks.harness.sections import Section, write_section

BENCHMARKS = Path(__file__).resolve().parent.parent
BUILD = BENCHMARKS.parent / "build" / "bench"


def compare(
    scenarios: Sequence[Scenario], section: Section, head: Sequence[str], arguments: Sequence[str] | None = None
) -> int:
    """Play what the command line asks for, and write the section; exit status 1 when a measure has no figures."""
    try:
        return _compare(
            scenarios, section, head, _parse(arguments, {each for one in scenarios for each in one.measures})
        )
    except KeyboardInterrupt:
        return 130


def _compare(scenarios: Sequence[Scenario], section: Section, head: Sequence[str], options: argparse.Namespace) -> int:
    begin = time.monotonic()
    # As ctrl-C: unwinds to the `finally` below, and to every training's own end.
    handle_sigterm()
    become_subreaper()
    machine = description()
    folder = BUILD / "runs" / time.strftime("%Y%m%d-%H%M%S")
    collected = Collected()

    def say(line: str) -> None:
        print(f"{time.monotonic() - begin:5.0f} s  {line}", flush=True)

    wanted = chosen(scenarios, options.only)
    try:
        for scenario in wanted:
            rounds = options.rounds or (1 if options.quick else scenario.rounds)
            run_scenario(scenario, rounds, QUICK if options.quick else NORMAL, folder, collected, say)
    finally:
        end_descendants()
    results = results_of(collected, options.only)
    output: Path = options.output or (BUILD if options.quick or options.only else BENCHMARKS)
    write_section(output, section, as_lines(head, results, machine, collected.troubles), as_measures(results))
    print("\n".join(["", *table(results), "", *collected.troubles, f"Written to {output}"]))
    expected = set(options.only) or {measure for scenario in wanted for measure in scenario.measures}
    return 0 if expected == {result.measure for result in results} else 1


def _parse(arguments: Sequence[str] | None, measures: Collection[Measure]) -> argparse.Namespace:
    known = [each for each in Measure if each in measures]
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, help="of every scenario (default: 3 to 5, as the scenario says)")
    parser.add_argument(
        "--only", type=Measure, choices=known, action="append", default=[], metavar="MEASURE",
        help=f"only this measure, may be repeated: {', '.join(known)}",
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="one round each, short waits: does it run at all?")
    parser.add_argument(
        "--output", type=Path,
        help="folder for results.json and RESULTS.md (default: this one; build/bench with --only or --quick)",
    )  # fmt: skip
    return parser.parse_args(arguments)
