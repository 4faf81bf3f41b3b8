"""One HTML page, complete in itself: the world over time, and where the oracle's work went."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import groupby

from benchmarks.traces.account import Cause
from benchmarks.traces.policy import PolicyName
from benchmarks.traces.replays import Replay
from benchmarks.traces.report import TITLES
from benchmarks.traces.simulator import Outcome
from benchmarks.traces.trace import HOUR, Trace

WIDTH, HEIGHT, LEFT, BAR = 900.0, 150.0, 150.0, 16.0
SHORT = 2.0
"""Seconds. A pause that is no longer is left out of the line, which would be nothing but pauses."""
USEFUL = "trained and kept"
GROUPS: Mapping[str, tuple[str, tuple[Cause, ...]]] = {
    USEFUL: ("#3b7dd8", ()),
    "resets, restarts, work done again": (
        "#d1495b",
        (Cause.RESIZING, Cause.RECOVERING, Cause.RESTARTING, Cause.REDONE),
    ),
    "waiting below the minimum, or for the end": ("#edae49", (Cause.WAITING, Cause.STANDING, Cause.STOPPED)),
    "machines and workers that start": ("#66a182", (Cause.STARTING, Cause.MACHINE_STARTING)),
    "machines unused, or left before they were taken": ("#8d96a3", (Cause.LEFT_EARLY, Cause.UNUSED)),
    "checkpoints": ("#7d5ba6", (Cause.CHECKPOINTING,)),
}
"""Colour and causes by what the legend says."""
STYLE = """
:root { color-scheme: light dark; }
body { font: 14px/1.5 system-ui, sans-serif; max-width: 980px; margin: 2em auto; padding: 0 1em; }
svg { width: 100%; height: auto; } text { fill: currentColor; font-size: 11px; }
.there { fill: currentColor; opacity: .12; } .axis { stroke: currentColor; opacity: .3; }
.ranks { fill: none; stroke: #3b7dd8; stroke-width: 1.5; }
.key { display: inline-block; width: 1em; height: 1em; margin: 0 .3em 0 1em; vertical-align: -.15em; }
"""


def page(replays: Iterable[Replay]) -> str:
    """All of them, those of one trace together; they have to come so."""
    keys = "".join(
        f'<span class="key" style="background:{colour}"></span>{name}' for name, (colour, _) in GROUPS.items()
    )
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>Spot traces</title>",
        f"<style>{STYLE}</style><h1>Spot traces</h1>",
        "<p>Grey: machines that are there. Line: ranks that train, ours in elastic mode. Bars: the work of an oracle ",
        f"with free, instant resizes, and what became of it.</p><p>{keys}</p>",
    ]
    for trace, group in groupby(replays, key=lambda each: each.trace):
        cases = list(group)
        parts.append(f"<h2>{escape(trace.name)}</h2>")
        parts += [_timeline(trace, cases[0]), *(_bars(each) for each in cases)]
    return "\n".join(parts) + "\n"


def _timeline(trace: Trace, replay: Replay) -> str:
    history = _without_short_pauses(replay.outcomes[PolicyName.ELASTIC].history)
    scale_x, scale_y = (WIDTH - LEFT) / trace.duration, HEIGHT / trace.peak
    there = _steps([(at, machines) for at, machines, _ in history], trace.duration, scale_x, scale_y)
    ranks = _steps([(at, size) for at, _, size in history], trace.duration, scale_x, scale_y)
    hours = "".join(
        f'<text x="{LEFT + hour * HOUR * scale_x:.0f}" y="{HEIGHT + 26:.0f}" text-anchor="middle">{hour} h</text>'
        for hour in range(0, int(trace.duration / HOUR) + 1, max(1, round(trace.duration / HOUR / 12)))
    )
    return (
        f'<svg viewBox="0 0 {WIDTH + 20:.0f} {HEIGHT + 32:.0f}" role="img" aria-label="machines and ranks over time">'
        f'<path class="there" d="{there} L{WIDTH:.1f},{HEIGHT + 10:.1f} L{LEFT:.1f},{HEIGHT + 10:.1f} Z"/>'
        f'<path class="ranks" d="{ranks}"/>'
        f'<path class="axis" d="M{LEFT:.0f},{HEIGHT + 10:.0f} H{WIDTH:.0f}"/>{hours}'
        f'<text x="{LEFT - 6:.0f}" y="14" text-anchor="end">{trace.peak} machines</text>'
        f'<text x="{LEFT - 6:.0f}" y="{HEIGHT + 12:.0f}" text-anchor="end">0</text></svg>'
    )


def _without_short_pauses(history: Sequence[tuple[float, int, int]]) -> list[tuple[float, int, int]]:
    kept: list[tuple[float, int, int]] = []
    for index, (at, machines, ranks) in enumerate(history):
        until = next((later for later, _, size in history[index + 1 :] if size), at)
        pause = not ranks and until - at <= SHORT
        kept.append((at, machines, kept[-1][2] if pause and kept else ranks))
    return kept


def _steps(points: Sequence[tuple[float, int]], end: float, scale_x: float, scale_y: float) -> str:
    def y(value: int) -> str:
        return f"{HEIGHT + 10 - value * scale_y:.1f}"

    moves = [f"M{LEFT:.1f},{y(0)}"]
    moves += [f"H{LEFT + at * scale_x:.1f} V{y(value)}" for at, value in points]
    return " ".join([*moves, f"H{LEFT + end * scale_x:.1f}"])


def _bars(replay: Replay) -> str:
    rows = [f"<h3>{escape(replay.case.title)}</h3>", f'<svg viewBox="0 0 {WIDTH + 50:.0f} {4 * (BAR + 6):.0f}">']
    for index, (name, title) in enumerate(TITLES.items()):
        outcome, x, y = replay.outcomes[name], LEFT, index * (BAR + 6)
        rows.append(f'<text x="{LEFT - 6:.0f}" y="{y + 12:.0f}" text-anchor="end">{escape(title)}</text>')
        for group, (colour, causes) in GROUPS.items():
            share = outcome.goodput if group == USEFUL else _share(outcome, causes)
            width = share * (WIDTH - LEFT)
            label = f"<title>{group}: {share:.2%}</title>"
            rows.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{BAR:.0f}" fill="{colour}">{label}</rect>'
            )
            x += width
        rows.append(f'<text x="{WIDTH + 6:.0f}" y="{y + 12:.0f}">{outcome.goodput:.3f}</text>')
    return "".join([*rows, "</svg>"])


def _share(outcome: Outcome, causes: Iterable[Cause]) -> float:
    return sum(outcome.account.missed.get(cause, 0.0) for cause in causes) / outcome.account.oracle
