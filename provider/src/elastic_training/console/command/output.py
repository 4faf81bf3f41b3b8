"""Terminal output: no character of a run's names or output moves a cursor."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from elastic_runtime.printable import LONG, printable

LONGEST = 1 << 14
"""Characters of a line."""


def masked(value: Any) -> Any:
    """Return a copy without the secrets that Airflow knows: none where this process has not imported it."""
    if "airflow" not in sys.modules:
        return value
    from elastic_training.redaction.values import masked as without_secrets

    return without_secrets(value)


def print_line(text: object, limit: int = LONGEST) -> None:
    """Print text as one line, cut at ``limit`` characters, with secrets masked."""
    sys.stdout.write(f"{fit(text, limit)}\n")


def print_error(text: object) -> None:
    """Print an error as one line to stderr, with secrets masked."""
    sys.stderr.write(f"elastic-training: {fit(text, LONG)}\n")


def fit(text: object, limit: int = LONGEST) -> str:
    """Return text as one printable line of at most ``limit`` characters, with the secrets masked that Airflow knows."""
    return printable(masked(str(text)), limit)


def print_json(value: Any) -> None:
    """Print JSON with secrets masked, in ASCII, so that it is safe for terminals."""
    sys.stdout.write(json.dumps(masked(value), indent=2) + "\n")


def print_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table whose columns are as wide as their widest cell."""
    cells = [tuple(head), *(tuple("-" if each is None else fit(each, 200) for each in row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        print_line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def time_text(time: datetime | None) -> str:
    """Format a time in UTC, to the second. None is ``-``."""
    return "-" if time is None else f"{time:%Y-%m-%d %H:%M:%S}Z"
