"""Replay traces of spot machines through the launcher's decision, on virtual time. See README.md in this folder."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.harness.sections import Section, read_measures, write_section  # noqa: E402  # the path above first
from benchmarks.traces.costs import Priced, Side, read_costs, with_given  # noqa: E402
from benchmarks.traces.deadlines import Steered, deadline_lines, steer  # noqa: E402
from benchmarks.traces.deadlines import as_measures as deadline_measures  # noqa: E402
from benchmarks.traces.made import MADE  # noqa: E402
from benchmarks.traces.policy import PolicyName, job_for, policies  # noqa: E402
from benchmarks.traces.replays import CASES, Case, Replay, replay  # noqa: E402
from benchmarks.traces.report import as_measures, head_lines, sensitivity_lines, trace_lines  # noqa: E402
from elastic_runtime.errors import ElasticError  # noqa: E402
from elastic_runtime.prices.book import SHIPPED, choose_price, read_prices  # noqa: E402
from elastic_runtime.rehearsal.policy import Job  # noqa: E402
from elastic_runtime.rehearsal.scaling import Scaling  # noqa: E402
from elastic_runtime.rehearsal.trace import Notices, Trace  # noqa: E402
from elastic_runtime.rehearsal.trace_files import SHIPPED as TRACES  # noqa: E402
from elastic_runtime.rehearsal.trace_files import read_trace  # noqa: E402

BUILD = HERE.parent / "build" / "bench" / "traces"
STORMY = "stormy"
"""The trace on which other assumptions are tried."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay; exit status 2 when an argument or a file is wrong."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except ElasticError as error:
        print(f"replay: {error}", file=sys.stderr)
        return 2


def _run(options: argparse.Namespace) -> int:
    price = choose_price(read_prices(options.prices), options.instance)
    measured = read_measures(HERE)
    given = dict(options.cost)
    ours, peer = (with_given(read_costs(measured, side), given) for side in (Side.OURS, Side.PEER))
    paths: list[Path] = options.traces or [TRACES / f"{name}.csv" for name in MADE]
    lines = head_lines(ours, peer, price, options.step)
    replays: list[Replay] = []
    steered: list[Steered] = []
    for trace in map(read_trace, paths):
        print(f"{trace.name} …", file=sys.stderr, flush=True)
        done = replay(trace, _job(trace, options), policies(ours.costs, peer.costs), _cases(options))
        lines += [*trace_lines(trace, done, price), ""]
        replays += done
        if options.deadlines:
            steered += steer(trace, policies(ours.costs, peer.costs)[PolicyName.ELASTIC], price, step_work=options.step)
    lines += sensitivity_lines(_other_assumptions(replays, ours, peer))
    if steered:
        lines += ["", *deadline_lines(steered)]
    as_shipped = options == _parser().parse_args([])
    output: Path = options.output or (HERE if as_shipped else options.build)
    write_section(output, Section.TRACES, lines, as_measures(replays, price) | deadline_measures(steered))
    print("\n".join([*lines, "", f"Written to {output}"]))
    return 0


def _job(trace: Trace, options: argparse.Namespace) -> Job:
    scaling = Scaling(options.efficiency)
    job = job_for(trace, minimum=options.min, maximum=options.max, scaling=scaling)
    changes = {"fixed": options.fixed, "max_wait": options.max_wait, "step_work": options.step}
    return replace(job, **{name: value for name, value in changes.items() if value is not None})


def _cases(options: argparse.Namespace) -> Sequence[Case]:
    if options.notice is None:
        return CASES
    share, deadline = options.notice
    notices = Notices(share, deadline, options.silent, options.seed)
    title = f"{notices.share:.0%} with notice of {notices.deadline:g} s" + (", others silent" if options.silent else "")
    return (Case("given", title, notices),)


def _other_assumptions(replays: Sequence[Replay], ours: Priced, peer: Priced) -> list[tuple[str, Replay]]:
    base = next((each for each in replays if each.trace.name == STORMY), None)
    if base is None:
        return []
    slow = {"machine_start": 180.0}
    tried = (
        *(
            (f"every pause of the training x {by:g}", base.job, ours.costs.scaled(by), peer.costs.scaled(by))
            for by in (3, 10)
        ),
        ("machines take 180 s to start", base.job, with_given(ours, slow).costs, with_given(peer, slow).costs),
        ("0.95 efficiency at each doubling", replace(base.job, scaling=Scaling(0.95)), ours.costs, peer.costs),
    )
    rows = [("as above", base)]
    for title, job, own, others in tried:
        rows += [(title, each) for each in replay(base.trace, job, policies(own, others), [base.case])]
    return rows


def _notice(text: str) -> tuple[float, float]:
    share, _, deadline = text.partition("@")
    return float(share), float(deadline)


def _cost(text: str) -> tuple[str, float]:
    name, _, seconds = text.partition("=")
    return name, float(seconds)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("traces", nargs="*", type=Path, metavar="TRACE", help="CSV: milliseconds,add|remove,node (default: shipped)")
    add("--min", type=int, help="fewest workers (default: a quarter of the most)")
    add("--max", type=int, help="most workers (default: the most machines that the trace has at once)")
    add("--fixed", type=int, help="workers in fixed mode (default: the best in hindsight)")
    add("--step", type=float, default=16.0, metavar="S", help="seconds of one worker for a global step")
    add("--efficiency", type=float, default=1.0, help="of the throughput at each doubling of the world")
    add("--max-wait", type=float, metavar="S", help="below the minimum before the run fails (default: for ever)")
    add(
        "--notice",
        type=_notice,
        metavar="SHARE@S",
        help="this share of losses is announced so long before (default: four cases)",
    )
    add("--silent", action="store_true", help="with --notice: the others vanish without closing their connections")
    add("--seed", type=int, default=0, help="with --notice: which losses are announced")
    add(
        "--deadlines",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="what deadlines cost, too; five minutes for the shipped traces",
    )
    add("--cost", type=_cost, action="append", default=[], metavar="NAME=S", help="another cost; may be repeated")
    add("--prices", type=Path, default=SHIPPED, help="price book")
    add("--instance", default="aws/g4dn.xlarge", help="instance type of the price book")
    add("--output", type=Path, help="folder for the results (default: build/bench/traces; without arguments this one)")
    add("--build", type=Path, default=BUILD, help="folder for the page to look at")
    return parser


if __name__ == "__main__":
    sys.exit(main())
