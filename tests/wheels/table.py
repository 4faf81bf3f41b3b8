"""What was found, as the page that ``make matrix`` writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

COLUMNS = ("install", "parse", "serialise", "deferred training", "page", "mark failed", "clear")

HEAD = """# Compatibility

You look up on which versions of Airflow and Python the provider was tested. `make matrix` writes this page.
The run was on {day}.

For each line, the wheels are built and installed into a clean environment, with a real Airflow on PostgreSQL
and real Horovod on this machine:

* A DAG is parsed and stored, and a deferred training succeeds. Then it is cleared, and trains again.
* A deferred training is marked as failed, and another one is cleared. The table has the seconds from the click until
  no process of it is left.
* The page in Airflow's UI is tested during a training: its tab, the lists, the report, a size, a notice, the end.

"""
FOOT = """
*Packages* are those of the named day, or the newest. Airflow's own constraint files were not available. So an older
version has the packages of two weeks after its release (`uv pip install --exclude-newer`).

The wheels require Python 3.11. Python 3.10, whose own support ended in October 2026, is not supported. The
trainings' own environment was Python 3.11 in all lines. Versions without a line were not run.

For versions of Kubernetes, see [kubernetes.md](kubernetes.md#what-a-cluster-needs).
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
