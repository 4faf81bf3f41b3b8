"""Words of the command that trains a script. Imports no Airflow."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from elastic_runtime.run.pool import MOST_PRIORITY
from elastic_training.console.command.numbers import number_of, whole_number_of

POOL_VARIABLE = "ELASTIC_TRAINING_POOL"
"""Names the pool in which scripts train by default: a pool's notebook has it."""
ENGINES = ("torch", "torchrun", "horovod", "horovodrun")
_MOST = 1000
_LONGEST_WAIT = 30 * 86400.0


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words of this command, and behind ``--`` those of the script."""
    own = list(words)
    if own[:1] != ["run"] or "--" not in own:
        return own, []
    end = own.index("--")
    return own[:end], own[end + 1 :]


def add_run(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to a parser."""
    about = "train a script in a pool or on this machine, and print its log; Ctrl-C ends the training"
    made = commands.add_parser(
        "run",
        help=about,
        description=f"{about[0].upper()}{about[1:]}.",
        usage="%(prog)s SCRIPT [--workers N] [--pool NAME | --local] [...] [-- ARGUMENT ...]",
        epilog="Arguments of the script follow behind --. The exit status is that of the script's first rank to fail.",
    )
    made.add_argument("script", metavar="SCRIPT", help="a Python file; its ranks run in the present folder")
    made.add_argument("--workers", type=_workers, default=1, metavar="N", help="workers to train with (default: 1)")
    made.add_argument("--min", type=_workers, default=1, metavar="N", help="fewest that train (default: 1)")
    made.add_argument("--max", type=_workers, metavar="N", help="most that can be asked for (default: --workers)")
    made.add_argument("--gpus", type=_gpus, default=0, metavar="N", help="of each worker (default: 0)")
    place = made.add_mutually_exclusive_group()
    place.add_argument("--pool", metavar="NAME", help=f"a pool that is up (default: ${POOL_VARIABLE}, if it is set)")
    place.add_argument("--local", action="store_true", help="on this machine, in no pool (default without a pool)")
    made.add_argument("--priority", type=_priority, default=1, metavar="N", help="among the pool's runs (default: 1)")
    made.add_argument(
        "--engine",
        choices=ENGINES,
        default=ENGINES[0],
        help="torchrun, horovodrun: start the script again at each change (default: %(default)s)",
    )
    made.add_argument(
        "--env", action="append", default=[], metavar="NAME[=VALUE]", help="variable of each rank; may be repeated"
    )
    made.add_argument("--checkpoints", metavar="URI", help="prefix of durable checkpoints (default: none)")
    made.add_argument("--wait", type=_seconds, metavar="S", help="seconds to wait for workers (default: 600)")
    made.add_argument("--detach", action="store_true", help="start it, print its name, and leave it")


def _workers(word: str) -> int:
    return whole_number_of("workers", word, _MOST)


def _gpus(word: str) -> int:
    return whole_number_of("GPUs", word, _MOST, least=0)


def _seconds(word: str) -> float:
    return number_of("seconds", word, _LONGEST_WAIT)


def _priority(word: str) -> int:
    sign = -1 if word.startswith("-") else 1
    return sign * whole_number_of("priority", word.removeprefix("-"), MOST_PRIORITY, least=0)
