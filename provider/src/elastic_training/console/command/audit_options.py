"""Options of the command that replays steps; without Airflow, which takes seconds to import."""

from __future__ import annotations

import argparse

from elastic_training.console.command.numbers import whole_number_of

MOST_STEPS, MOST_WORKERS, MOST_SECONDS = 10**15, 10_000, 30 * 86400
"""That the options take."""


def add_replay_options(made: argparse.ArgumentParser) -> None:
    """Add the options of ``replay``."""
    made.add_argument(
        "--step", type=lambda word: whole_number_of("steps", word, MOST_STEPS), required=True, metavar="N",
        help="begin with the newest checkpoint at or before it, and train on to the next recorded one",
    )  # fmt: skip
    made.add_argument(
        "--workers", type=lambda word: whole_number_of("workers", word, MOST_WORKERS), required=True, metavar="M",
        help="number of workers on this machine",
    )  # fmt: skip
    made.add_argument(
        "--within", type=float, default=0.0, metavar="R",
        help="relative difference of a tensor that still counts as equal (default: 0, equal to the bit)",
    )  # fmt: skip
    made.add_argument(
        "--timeout", type=lambda word: whole_number_of("seconds", word, MOST_SECONDS), default=3600, metavar="S",
        help="for the training (default: 3600)",
    )  # fmt: skip
