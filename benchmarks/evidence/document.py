"""What an evidence says: the same for its page (HTML) and for docs/evidence.md."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import mean, median

_TEMPLATE = Path(__file__).with_name("page.html")
_PLACE = "/* document */ null"
_SMOOTH = 20
"""Points of which a curve shows the mean."""
_GAP = 10
"""Times the median distance of two points: a curve is broken there."""


@dataclass(frozen=True, slots=True)
class Goal:
    """Something that was to be reached."""

    what: str
    measured: str
    goal: str
    met: bool


def weights_told(same: bool, difference: float) -> str:
    """Final weights beside those of the undisturbed run, in words."""
    return "equal" if same else f"differ by {difference:.2g}"


def weights_goal(same: bool, difference: float) -> Goal:
    """Final weights are those of the undisturbed run."""
    return Goal("final weights", weights_told(same, difference), "equal to the last bit", same)


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as they are shown."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Curve:
    """A line of a chart, in pieces: between them nothing was done."""

    name: str
    pieces: tuple[tuple[tuple[float, float], ...], ...]
    marks: tuple[float, ...] = ()
    """Where on the x axis something was done to it."""


@dataclass(frozen=True, slots=True)
class Chart:
    """Some curves over one x axis."""

    title: str
    x: str
    y: str
    curves: tuple[Curve, ...]
    mark: str = "fault"
    """What the curves' marks are."""


@dataclass(frozen=True, slots=True)
class Document:
    """One evidence."""

    name: str
    title: str
    lead: str
    goals: tuple[Goal, ...]
    tables: tuple[Table, ...]
    charts: tuple[Chart, ...]
    method: tuple[str, ...]
    law: tuple[str, ...]
    limits: tuple[str, ...]
    machine: Mapping[str, str] = field(default_factory=dict)


def smoothed(
    name: str, points: Sequence[tuple[float, float]], marks: Sequence[float] = (), mean_of: int = _SMOOTH
) -> Curve:
    """A curve of means, broken at gaps.

    Args:
        name: in the legend.
        points: x and y, by x.
        marks: x of what was done to it.
        mean_of: points, with those before it in the same piece.
    """
    if len(points) < 2:
        return Curve(name, (tuple(points),), tuple(marks))
    longest = _GAP * median(later[0] - point[0] for point, later in pairwise(points))
    pieces: list[list[tuple[float, float]]] = [[points[0]]]
    for point, later in pairwise(points):
        if later[0] - point[0] > longest:
            pieces.append([])
        pieces[-1].append(later)
    return Curve(name, tuple(_means(piece, mean_of) for piece in pieces), tuple(round(mark, 2) for mark in marks))


def _means(piece: Sequence[tuple[float, float]], count: int) -> tuple[tuple[float, float], ...]:
    return tuple(
        (round(x, 2), round(mean(y for _, y in piece[max(at - count + 1, 0) : at + 1]), 4))
        for at, (x, _) in enumerate(piece)
    )


def page(document: Document) -> str:
    """A page that needs nothing beside it."""
    data = json.dumps(asdict(document)).replace("<", "\\u003c")  # No text ends the script.
    template = _TEMPLATE.read_text()
    assert _PLACE in template, f"{_TEMPLATE.name} has no place for the document"
    return template.replace(_PLACE, data)


def markdown(documents: Sequence[Document]) -> str:
    """docs/evidence.md: all of them."""
    return "\n".join([*_HEAD, *(line for each in documents for line in _section(each))]) + "\n"


_HEAD = (
    "# Evidence",
    "",
    "You see how this project does in comparisons that other projects have published, and what it did not reach. Each "
    "section has",
    "a page with its method, hardware, fault law, plots and limits, and the raw data. `make evidence` measures all of "
    "them again.",
    "",
    "All figures are from one machine with the few CPU cores that its page names, and small models. The published "
    "figures are from",
    "GPU clusters, so compare ratios, and not times. The file is generated: do not edit it.",
)


def _section(document: Document) -> list[str]:
    folder = "../benchmarks/evidence"
    goals = Table(
        ("goal", "measured", "wanted", "met"),
        tuple((each.what, each.measured, each.goal, "yes" if each.met else "**no**") for each in document.goals),
    )
    return [
        "",
        f"## {document.title}",
        "",
        document.lead,
        "",
        *_table(goals),
        *(line for each in document.tables for line in ("", *_table(each))),
        "",
        f"[Page]({folder}/{document.name}.html) and [raw data]({folder}/{document.name}.json). "
        f"Measured on {document.machine.get('date', 'an unknown date')}, {_machine(document)}.",
    ]


def _machine(document: Document) -> str:
    return document.machine.get("machine", "").replace("(R)", "")


def _table(table: Table) -> list[str]:
    lines = [table.head, tuple("---" for _ in table.head), *table.rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]
