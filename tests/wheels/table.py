"""What was found, as the page that ``make matrix`` writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

COLUMNS = ("install", "parse", "serialise", "deferred training", "page", "mark failed", "clear")

HEAD = """# Compatibility

Which versions of Airflow the provider works with, and under which Pythons: found on {day} by `make matrix`, which
writes this page. For each line the wheels are built and installed into a clean environment; a real Airflow on
PostgreSQL parses and stores a DAG, trains deferred to success on this machine with real Horovod, has a deferred
training marked as failed, and one cleared, and waits until no process of it is left (seconds from the click). A
training that has succeeded is cleared, and trains again. The page in Airflow's UI is asked for a training that goes on:
its tab, the lists, the report, a size, a notice, the end.

"""
FOOT = """
*Packages*: those of the day that is named, or the newest. Airflow's own constraint files could not be had where this
was made. So for an older version packages are taken as they were two weeks after its release (`uv pip install
--exclude-newer`).

Python 3.10, whose own support ended in October 2026, is not supported: the wheels ask for 3.11. The trainings' own
environment was Python 3.11 in all lines.
What has no line was not run.

Versions of Kubernetes, and what was run on which: [kubernetes.md](kubernetes.md#what-a-cluster-needs).
"""


@dataclass(slots=True)
class Line:
    """One Airflow under one Python."""

    airflow: str
    python: str
    packages: str
    """Their day, or ``newest``."""
    found: dict[str, str] = field(default_factory=dict)
    """By column: ``yes``, seconds, or what was wrong; a column that was not reached is missing."""

    @property
    def well(self) -> bool:
        """Whether every column was reached, and nothing was wrong."""
        return set(self.found) == set(COLUMNS) and not any(each.startswith("**") for each in self.found.values())


def page(day: str, lines: Sequence[Line]) -> str:
    """The page, in Markdown."""
    rows: list[Sequence[str]] = [("Airflow", "Python", "packages", *COLUMNS), ["---"] * (3 + len(COLUMNS))]
    rows += [(line.airflow, line.python, line.packages, *_found(line.found)) for line in lines]
    return HEAD.format(day=day) + "".join(f"| {' | '.join(row)} |\n" for row in rows) + FOOT


def _found(found: Mapping[str, str]) -> list[str]:
    return [found.get(column, "not reached") for column in COLUMNS]
