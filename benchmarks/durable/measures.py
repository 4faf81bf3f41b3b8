"""What is measured of checkpoints, and what has to be reached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.harness.measures import Bound, Target
from benchmarks.harness.statistics import Ratio, Summary, compare, summarise

SIZES = {"10mb": 10, "1gb": 1024}
"""Models: name to megabytes."""
DEADLINES = (120.0, 30.0, 15.0)
"""Seconds from a notice to a worker's end: AWS, Azure and GCP, a pod on GCP."""
TWENTIETH = Target(Bound.RATIO_AT_MOST, 1 / 20)
NO_MORE = Target(Bound.RATIO_AT_MOST, 1.0)
NONE_LOST = Target(Bound.OURS_AT_MOST, 0)


@dataclass(slots=True)
class Row:
    """One measure, with its figures."""

    name: str
    """Key in ``results.json``."""
    title: str
    unit: str = "s"
    target: Target | None = None
    ours: list[float] = field(default_factory=list)
    peer: list[float] = field(default_factory=list)
    """Empty where there is nothing to compare with."""
    worst: bool = False
    """Whether the target is for the worst round rather than for the median."""

    @property
    def summary(self) -> Summary:
        """Of ours."""
        return summarise(self.ours)

    @property
    def ratio(self) -> Ratio | None:
        """Of the medians."""
        return compare(self.ours, self.peer)

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; None without one."""
        if self.target is None:
            return None
        ratio = self.ratio
        return self.target.met(max(self.ours) if self.worst else self.summary.centre, ratio.value if ratio else None)


def as_measures(rows: Sequence[Row]) -> dict[str, dict[str, object]]:
    """For ``results.json``."""
    return {row.name: _plain(row) for row in rows}


def _plain(row: Row) -> dict[str, object]:
    summary, ratio = row.summary, row.ratio
    peer = summarise(row.peer) if row.peer else None
    return {
        "title": row.title,
        "ours": _round(summary.centre),
        "peer": peer and _round(peer.centre),
        "ratio": ratio and _round(ratio.value),
        "rounds": summary.count,
        "unit": row.unit,
        "centre": "median",
        "ours_quartiles": [_round(summary.low), _round(summary.high)],
        "peer_quartiles": peer and [_round(peer.low), _round(peer.high)],
        "ratio_interval": ratio and [_round(ratio.low), _round(ratio.high)],
        "ours_worst": _round(max(row.ours)),
        "target": f"{row.target}{' (worst round)' if row.worst else ''}" if row.target else None,
        "met": row.met,
    }


def table(rows: Sequence[Row]) -> list[str]:
    """A Markdown table, one line each."""
    lines = [
        "| measure | ours | worst | peer | ratio (95 %) | rounds | target | met |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        ratio, target = row.ratio, str(row.target or "—")
        cells = (
            f"{row.title} ({row.unit})",
            _spread(row.summary),
            f"{max(row.ours):.3g}",
            _spread(summarise(row.peer)) if row.peer else "—",
            f"{ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]" if ratio else "—",
            str(row.summary.count),
            target.replace("ours", "worst") if row.worst else target,
            {True: "yes", False: "**no**", None: "—"}[row.met],
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _spread(summary: Summary) -> str:
    return f"{summary.centre:.3g} [{summary.low:.3g}, {summary.high:.3g}]"


def _round(value: float) -> float:
    return round(value, 5)
