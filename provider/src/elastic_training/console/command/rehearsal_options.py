"""The words of ``elastic-training rehearse``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from elastic_runtime.rehearsal.costs import Costs
from elastic_runtime.run.spec import RecoveryMode
from elastic_training.console.command.numbers import number_of, whole_number_of

DAYS, RUNS = 30.0, 5
_MOST_DAYS, _MOST_RUNS, _MOST_WORKERS = 366.0, 1000, 1000
_YEAR = 366 * 86400.0
_ABOUT = (
    "Replay a training task on past spot markets, by the launcher's own decision. Print when it would end and what it "
    "would cost. The DAG file is run. Options say what it leaves open; without a file, they say everything."
)


def add_rehearse(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the others."""
    about = "replay a task on past spot markets: when it would end, what it would cost"
    made = commands.add_parser("rehearse", help=about, description=_ABOUT)
    _add_task(made)
    _add_market(made.add_argument_group("market"))
    _add_settings(made.add_argument_group("settings, in the place of the task's"))
    made.add_argument("--json", action="store_true", help="for programs")


def _add_task(made: argparse.ArgumentParser) -> None:
    add = made.add_argument
    add("file", nargs="?", type=Path, metavar="DAG.py", help="file of the task's DAG (default: none, and no Airflow)")
    add("--task", metavar="ID", help="the training task, with DAG.py")
    add("--dag", metavar="ID", help="its DAG, if several in the file have such a task")
    work = made.add_mutually_exclusive_group()
    about = "global steps (default: those of the task's newest run that succeeded)"
    work.add_argument("--steps", type=_whole("steps", 10**12), metavar="N", help=about)
    work.add_argument(
        "--node-hours", type=_number("hours", 1e6), metavar="H", help="instead: hours of one worker alone"
    )
    about = "of a step with all workers asked for (default: as the task's newest runs have measured, or 1)"
    add("--step-seconds", type=_number("seconds", _YEAR), metavar="S", help=about)
    about = "of the throughput at each doubling of the workers, above 0.5 (default: as measured, or 1)"
    add("--efficiency", type=_number("efficiency", 1.0), metavar="E", help=about)


def _add_market(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--market", metavar="TYPE", help='machine type in the price book: "g4dn.xlarge" (default: the task\'s machine)')
    about = "recorded market, CSV or JSON, or the name of one that ships; may be repeated (default: all that ship)"
    add("--trace", action="append", default=[], metavar="FILE", help=about)
    add("--ec2", metavar="REGION", help="ask EC2 for the prices of the past days, with boto3's credentials")
    about = "so much of each market's past, the newest; a run that takes longer has not finished (default: 30)"
    add("--days", type=_number("days", _MOST_DAYS), default=DAYS, metavar="N", help=about)
    add("--runs", type=_whole("runs", _MOST_RUNS), default=RUNS, metavar="N", help="in each market (default: 5)")
    about = "price book, or \"example\" (default: the task's, the deployment's, or the one that ships)"
    add("--prices", metavar="FILE", help=about)


def _add_settings(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--min", type=_whole("workers", _MOST_WORKERS), metavar="N", help="fewest workers that train")
    add("--start", type=_whole("workers", _MOST_WORKERS), metavar="N", help="workers asked for")
    add("--max", type=_whole("workers", _MOST_WORKERS), metavar="N", help="most workers that can be asked for")
    add("--mode", choices=[each.value for each in RecoveryMode])
    add("--max-wait", type=_number("seconds", _YEAR), metavar="S")
    add("--start-timeout", type=_number("seconds", _YEAR), metavar="S")
    add("--reset-limit", type=_whole("resets", 10**9, 0), metavar="N")
    add("--checkpoint-every", type=_number("seconds", _YEAR, zero=True), metavar="S", help="0: there are none")
    about = "before a machine is taken; 0: none (default: as the cloud does)"
    add("--notice", type=_number("seconds", 86400.0, zero=True), metavar="S", help=about)
    about = f"what something takes; may be repeated: {', '.join(Costs.__dataclass_fields__)}"
    add("--cost", type=_cost, action="append", default=[], metavar="NAME=S", help=about)


def _whole(what: str, most: int, least: int = 1) -> Callable[[str], int]:
    return lambda word: whole_number_of(what, word, most, least)


def _number(what: str, most: float, *, zero: bool = False) -> Callable[[str], float]:
    return lambda word: number_of(what, word, most, zero=zero)


def _cost(word: str) -> tuple[str, float]:
    name, _, seconds = word.partition("=")
    return name, number_of("seconds, as in grow=1.5,", seconds, _YEAR, zero=True)
