"""Reads the words of a command line, has the command carried out, and turns what comes of it into an exit status."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from datetime import date, timedelta

from elastic_runtime.errors import ElasticError
from elastic_runtime.run.join import LONGEST_LIFETIME
from elastic_runtime.run.status import Phase
from elastic_training.console.command import pools
from elastic_training.console.command.audit_options import add_replay_options
from elastic_training.console.command.exit_status import INTERRUPTED, REFUSED
from elastic_training.console.command.numbers import number_of, whole_number_of
from elastic_training.console.command.pools import add_pool
from elastic_training.console.command.rehearsal_options import add_rehearse
from elastic_training.console.command.training_options import add_run, split_words

_MOST_SECONDS = 86400.0
_MOST_DAYS = 36500.0


def main(words: Sequence[str] | None = None) -> int:
    """Carry a command out.

    Args:
        words: of the command line, without the program's name; None: this process's.

    Returns:
        The exit status: 0; 1: it was refused, or a place does not answer; 2: wrong words (raised as SystemExit, too);
        130: Ctrl-C. For ``run``, that of the script.
    """
    own, of_script = split_words(sys.argv[1:] if words is None else words)
    arguments = parser().parse_args(own)
    arguments.of_script = of_script
    if arguments.command == "join":  # Which needs no Airflow, and stays for long.
        os.execv(sys.executable, (sys.executable, "-m", "elastic_runtime.agent.join", *arguments.words))  # noqa: S606
    try:
        return _carried_out(arguments)
    except KeyboardInterrupt:  # Also while Airflow is imported, which takes seconds.
        return INTERRUPTED


def _carried_out(arguments: argparse.Namespace) -> int:
    # As Airflow's own commands: connections are looked up in its database, too, if a place is one.
    os.environ.setdefault("_AIRFLOW_PROCESS_CONTEXT", "server")
    from elastic_training.console.command.output import print_error

    try:
        if arguments.command == "pool":
            return pools.carry_out(arguments)
        if arguments.command == "run":
            from elastic_training.console.command import training

            return training.carry_out(arguments)
        if arguments.command == "rehearse":
            from elastic_training.console.command import rehearsing  # Which imports Airflow if there is a DAG file.

            return rehearsing.carry_out(arguments)
        from elastic_training.console.command import actions  # After the parser: Airflow takes seconds to import.

        return actions.carry_out(arguments)
    except BrokenPipeError:  # Whoever read it has seen enough: no complaint from Python at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except ElasticError as error:
        print_error(str(error))
    except Exception as error:  # noqa: BLE001  # of a library or a disk: at a terminal, a line in place of a traceback
        print_error(f"{type(error).__name__}: {error}")
    return REFUSED


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    every = argparse.ArgumentParser(prog="elastic-training", description="Elastic training runs, at a terminal.")
    commands = every.add_subparsers(dest="command", required=True, metavar="COMMAND")

    add_run(commands)
    runs = _command(commands, "runs", "list the runs, place by place, the newest first", "", as_json=True)
    runs.add_argument("--phase", choices=[each.value for each in Phase], help="only those")
    _command(commands, "show", "show the state of a run", as_json=True)
    scale = _command(commands, "scale", "ask for another number of workers")
    scale.add_argument("workers", metavar="N|+N|-N|min|max", help="0: as pause")
    pause = _command(commands, "pause", "give up all workers once the state is durable; the task goes on to wait")
    pause.set_defaults(workers="0")
    resume = _command(commands, "resume", "go on with a paused run, at its next step")
    resume.add_argument("--workers", metavar="N|min|max", help="default: as many as before the pause")
    logs = _command(commands, "logs", "print the log of launcher and ranks")
    logs.add_argument("-f", "--follow", action="store_true", help="go on until the run is over")
    logs.add_argument("-n", "--lines", type=_lines, metavar="N", help="of what is there, only the last N lines")
    notice = _command(commands, "notice", "send a worker a preemption notice, as a cloud would: a drill")
    notice.add_argument("worker")
    notice.add_argument("--seconds", type=_seconds, default=30.0, help="until then (default: 30)")
    token = _command(commands, "token", "print the command by which another machine joins a run as a worker, once")
    token.add_argument("--minutes", type=_minutes, default=60.0, help="until the token expires (default: 60)")
    join = commands.add_parser("join", help="have this machine join a run, as elastic-join does", add_help=False)
    join.add_argument("words", nargs=argparse.REMAINDER)
    _command(commands, "stacks", "have each rank write into the run's log where it stands, as of a stalled run")
    shell = _command(commands, "exec", "print the command that opens a shell where a worker's ranks run")
    shell.add_argument("worker", nargs="?", help="default: that of rank 0")
    shell.add_argument("--run", action="store_true", dest="enter", help="run it; kubectl has to be installed")
    end = _command(commands, "end", "ask a run to end; its documents and checkpoints stay")
    end.add_argument("--yes", action="store_true", help="do not ask")
    _add_prune(commands)
    _add_audit(commands)
    _add_costs(commands)
    report = _command(commands, "report", "write a run's report as one HTML page")
    report.add_argument("-o", "--output", metavar="FILE", help="default: standard output")
    add_pool(commands)
    add_rehearse(commands)
    return every


def _add_prune(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    prune = _command(commands, "prune", "remove runs that are over for long; their checkpoints stay", "")
    prune.add_argument("--days", type=_days, metavar="N", help="older than so many days (default: keep_days)")
    prune.add_argument("--runs", type=_lines, metavar="N", help="but for the last N DAG runs of each task (keep_runs)")
    prune.add_argument("--all-deployments", action="store_true", help="of other deployments of Airflow, too")
    prune.add_argument("--dry-run", action="store_true", help="only list them")
    prune.add_argument("--yes", action="store_true", help="do not ask")


def _add_costs(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    costs = _command(commands, "costs", "sum up what the runs have cost, with idle and lost time", "", as_json=True)
    costs.add_argument("--by", choices=("dag", "team", "month", "place"), default="dag", help="default: dag")
    costs.add_argument("--since", type=_day, metavar="YYYY-MM-DD", help="only runs that began then or later, in UTC")
    costs.add_argument("--csv", action="store_true", help="for spreadsheets")


def _add_audit(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    _command(commands, "verify", "check a run's training receipt", "the run's name, or the URI of its checkpoints")
    add_replay_options(_command(commands, "replay", "train some steps of a run again here, and compare the weights"))


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    about: str,
    run: str = "the run's name, or how it begins where that is enough",
    *,
    as_json: bool = False,
) -> argparse.ArgumentParser:
    made = commands.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.")
    if run:
        made.add_argument("run", metavar="RUN", help=run)
    made.add_argument(
        "--place",
        action="append",
        metavar="P",
        help='where to look, as in the operator\'s cluster: "local", CONNECTION, CONNECTION/NAMESPACE; may be repeated '
        "(default: [elastic_training] places)",
    )
    if as_json:
        made.add_argument("--json", action="store_true", help="for programs")
    return made


def _lines(word: str) -> int:
    return whole_number_of("lines", word, 1_000_000)


def _day(word: str) -> date:
    try:
        return date.fromisoformat(word)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{word!r} is not a day such as 2026-11-28") from None


def _days(word: str) -> float:
    return number_of("days", word, _MOST_DAYS)


def _minutes(word: str) -> float:
    return number_of("minutes", word, LONGEST_LIFETIME / timedelta(minutes=1))


def _seconds(word: str) -> float:
    return number_of("seconds", word, _MOST_SECONDS)
