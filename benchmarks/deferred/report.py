"""This benchmark's section of the results: figures for programs, Markdown for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from benchmarks.deferred.figures import TITLES, Figure
from benchmarks.deferred.requests import Kind
from benchmarks.deferred.rounds import Round
from benchmarks.deferred.sides import Load, Name
from benchmarks.harness.statistics import Summary

_FEWEST = 0.005
"""Requests a second and kind that are worth a word, as a share of all."""


def as_measures(figures: Iterable[Figure]) -> dict[str, dict[str, object]]:
    """``{measure: {title, ours, peer, idle, ratio, rounds, …}}``; all but ``ratio`` and ``rounds`` in ``unit``."""
    return {figure.key: _plain(figure) for figure in figures}


def _plain(figure: Figure) -> dict[str, object]:
    ratio = figure.ratio
    return {
        "title": f"{figure.count} runs: {TITLES[figure.quantity][0]}",
        "ours": _round(figure.ours.centre),
        "peer": _round(figure.peer.centre),
        "idle": None if figure.idle is None else _round(figure.idle),
        "ratio": ratio and _round(ratio.value),
        "rounds": min(figure.ours.count, figure.peer.count),
        "unit": TITLES[figure.quantity][1],
        "target": str(figure.target) if figure.target else None,
        "met": figure.met,
    }


def table(figures: Iterable[Figure]) -> list[str]:
    """A Markdown table, one line each."""
    lines = [
        "| N | measure | ours | peer | idle | ratio | rounds | target | met |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for figure in figures:
        title, unit = TITLES[figure.quantity]
        cells = (
            str(figure.count),
            f"{title} ({unit})",
            _spread(figure.ours),
            _spread(figure.peer),
            "—" if figure.idle is None else f"{figure.idle:.3g}",
            f"{figure.ratio.value:.3f}" if figure.ratio else "—",
            str(min(figure.ours.count, figure.peer.count)),
            str(figure.target or "—"),
            {True: "yes", False: "**no**", None: "—"}[figure.met],
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def as_lines(
    figures: Sequence[Figure], rounds: Sequence[Round], load: Load, machine: Mapping[str, str], troubles: Sequence[str]
) -> list[str]:
    """The section, whole, in Markdown."""
    return [
        "## Deferred runs in one triggerer against KubernetesPodOperator's",
        "",
        "Written by `make bench-deferred`. One real Airflow triggerer with N deferred task instances, one real",
        "Kubernetes API server. Ours is `TrainingRunTrigger`, which also streams every run's log into its task's log;",
        "the peer is `KubernetesPodTrigger` with the defaults of `KubernetesPodOperator(deferrable=True)`, which",
        "streams none. Idle is as many of Airflow's `DateTimeTrigger`: what the triggerer costs by itself. How each",
        "figure is taken: [README.md](README.md). Medians of the rounds, quartiles in brackets.",
        "",
        f"Each of our runs gets a new status every {load.status:g} s and a line of log every {load.line:g} s. The pods",
        "are stand-ins; nobody but the triggerer watches them.",
        "",
        *table(figures),
        "",
        "What was asked of the API server, a second, in the window of the last round of each:",
        "",
        "| N | side | by the triggerer | by the launchers | API server's CPU, s/min | by the triggerer, a run's life |",
        "| --- | --- | --- | --- | --- | --- |",
        *(_asked(each) for each in _last(rounds)),
        "",
        *(f"* {name}: {value}" for name, value in machine.items()),
        "",
        "Rounds that failed, and what else went wrong:",
        "",
        *([f"* {trouble}" for trouble in troubles] or ["* none"]),
    ]


def _last(rounds: Iterable[Round]) -> list[Round]:
    last = {(each.count, each.side): each for each in rounds if each.side is not Name.IDLE}
    return [last[key] for key in sorted(last)]


def _asked(of: Round) -> str:
    seconds = of.usage.seconds
    cells = (
        str(of.count),
        of.side,
        _kinds(of.requests, seconds),
        f"{of.written / seconds:.3g}",
        f"{60 * of.server.cpu / of.server.seconds:.3g}",
        f"{of.life.total() / of.count:.3g}",
    )
    return f"| {' | '.join(cells)} |"


def _kinds(requests: Counter[Kind], seconds: float) -> str:
    most = [(kind, count) for kind, count in requests.most_common() if count >= _FEWEST * requests.total()]
    return ", ".join(f"{kind}: {count / seconds:.3g}" for kind, count in most) or "nothing"


def _spread(summary: Summary) -> str:
    if summary.count == 1:
        return f"{summary.centre:.3g}"
    return f"{summary.centre:.3g} [{summary.low:.3g}, {summary.high:.3g}]"


def _round(value: float) -> float | None:
    """JSON knows no infinity."""
    return round(value, 4) if abs(value) != float("inf") else None
