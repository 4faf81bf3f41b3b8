"""N deferred runs in one triggerer, ours against KubernetesPodOperator's. See README.md in this folder."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "tools")]

from benchmarks.deferred.api import Api  # noqa: E402
from benchmarks.deferred.control_plane import ApiServer, api_server  # noqa: E402
from benchmarks.deferred.figures import LARGEST, Quantity, figures_of, value  # noqa: E402
from benchmarks.deferred.idle import Idle  # noqa: E402
from benchmarks.deferred.kubelet import Kubelet, node  # noqa: E402
from benchmarks.deferred.pods import Pods  # noqa: E402
from benchmarks.deferred.report import as_lines, as_measures, table  # noqa: E402
from benchmarks.deferred.rounds import Bench, Pace, Round  # noqa: E402
from benchmarks.deferred.runs import Runs  # noqa: E402
from benchmarks.deferred.sides import Load, Name, Side  # noqa: E402
from benchmarks.deferred.triggerer import Airflow, airflow  # noqa: E402
from benchmarks.harness.machine import description  # noqa: E402
from benchmarks.harness.processes import become_subreaper, end_descendants, handle_sigterm  # noqa: E402
from benchmarks.harness.sections import Section, write_section  # noqa: E402
from cluster_kit.errors import ClusterError, NoWay  # noqa: E402  # the path above has to be there first

BUILD = HERE.parent / "build" / "bench" / "deferred"
COUNTS = (10, 100, LARGEST)
"""N."""
ROUNDS = 1
"""Of each side at every N. The figures of a round are averages over minutes, and of up to twenty ends."""
QUICK = Pace(settle=5.0, window=10.0, window_each=0.0, ends=5, gap=0.5)
NO_WAY = 3
PACKAGES = ("apache-airflow", "apache-airflow-providers-cncf-kubernetes", "kubernetes_asyncio")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for; exit status 1 when nothing could be compared, 3 without a way to an API server."""
    options = _parse(arguments)
    begin = time.monotonic()
    handle_sigterm()
    become_subreaper()

    def say(line: str) -> None:
        print(f"{time.monotonic() - begin:5.0f} s  {line}", flush=True)

    machine = description(PACKAGES)
    folder = BUILD / "run"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        with api_server(folder / "kubernetes") as server, airflow(folder / "airflow", server.kubeconfig) as installed:
            rounds, troubles = asyncio.run(_play(server, installed, options, say))
    except NoWay as error:
        print(f"The benchmark of deferred runs is left out: {error}", file=sys.stderr)
        return NO_WAY
    except ClusterError as error:
        print(f"deferred_runs: {error}", file=sys.stderr)
        return 1
    finally:
        end_descendants()
    figures = figures_of(rounds)
    as_shipped = not (options.quick or options.only or options.side or _load(options) != Load())
    output: Path = options.output or (HERE if as_shipped else BUILD)
    lines = as_lines(figures, rounds, _load(options), machine, troubles)
    write_section(output, Section.DEFERRED_RUNS, lines, as_measures(figures))
    print("\n".join(["", *table(figures), "", *troubles, f"Written to {output}"]))
    return 0 if figures or options.side else 1


async def _play(
    server: ApiServer, installed: Airflow, options: argparse.Namespace, say: Callable[[str], None]
) -> tuple[list[Round], list[str]]:
    rounds: list[Round] = []
    troubles: list[str] = []
    kubelet = Kubelet()
    async with Api(server) as api, kubelet.serve(server.folder) as port:
        await api.create("nodes", node(port))
        bench = Bench(server, api, installed, say)
        sides = (Idle(), Runs(api, kubelet, _load(options)), Pods(api, installed.extras))
        for count in options.only or COUNTS:
            for side, number in _order(sides, options, count):
                try:
                    played = await bench.play(side, count, _pace(options), seed=number)
                except* (TimeoutError, RuntimeError) as errors:
                    troubles.append(f"N = {count}, {side.name}, round {number}: {errors.exceptions[0]!r}")
                    say(troubles[-1])
                else:
                    say(_word(played))
                    rounds.append(played)
    return rounds, troubles


def _order(sides: Sequence[Side], options: argparse.Namespace, count: int) -> list[tuple[Side, int]]:
    """Ours, peer, peer, ours, …; at the largest N after one round of idle triggers."""
    idle, *both = sides
    order = [(idle, 1)] if count == LARGEST else []
    for number in range(1, options.rounds + 1):
        order += [(side, number) for side in (both if number % 2 else reversed(both))]
    return [(side, number) for side, number in order if not options.side or side.name in options.side]


def _word(of: Round) -> str:
    cpu, memory = value(of, Quantity.CPU), value(of, Quantity.MEMORY)
    ends = f"{len(of.delays)} ends, the slowest after {max(of.delays, default=0):.1f} s"
    return f"N = {of.count:4} {of.side:5}  {of.rate:6.1f} requests/s  {cpu:5.1f} CPU s/min  {memory:5.0f} MiB  {ends}"


def _pace(options: argparse.Namespace) -> Pace:
    pace = QUICK if options.quick else Pace()
    if options.settle is not None:
        pace = replace(pace, settle=options.settle)
    return pace if options.window is None else replace(pace, window=options.window, window_each=0.0)


def _load(options: argparse.Namespace) -> Load:
    return Load(options.status, options.line)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of each side at every N (default: %(default)s)")
    parser.add_argument("--only", type=int, action="append", metavar="N", help="only this N, may be repeated")
    parser.add_argument("--side", type=Name, choices=list(Name), action="append", help="only this one, may be repeated")
    parser.add_argument("--quick", action="store_true", help="one round each, short windows: does it run at all?")
    parser.add_argument("--settle", type=float, metavar="SECONDS", help="before the window (default: 10)")
    parser.add_argument("--window", type=float, metavar="SECONDS", help="measured (default: 60, or 200)")
    parser.add_argument(
        "--status", type=float, default=Load().status, metavar="SECONDS",
        help="between two status documents of one of our runs (default: %(default)g); 0: never",
    )  # fmt: skip
    parser.add_argument(
        "--line", type=float, default=Load().line, metavar="SECONDS",
        help="between two lines of one of our runs' logs (default: %(default)g); 0: never",
    )  # fmt: skip
    parser.add_argument(
        "--output", type=Path,
        help="folder for results.json and RESULTS.md (default: this one; build/bench/deferred when not all as shipped)",
    )  # fmt: skip
    return parser.parse_args(arguments)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
