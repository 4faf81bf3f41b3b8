"""The plot: training loss by epoch, and below it the world size and the factor of the learning rate. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from benchmarks.batches.runs import Curve

WIDTH, LEFT, RIGHT = 860.0, 64.0, 200.0
LOSS_TOP, LOSS_HEIGHT = 24.0, 250.0
WORLD_TOP, WORLD_HEIGHT = 310.0, 90.0
HEIGHT = WORLD_TOP + WORLD_HEIGHT + 44.0
COLOURS = ("#222222", "#3b7dd8", "#e0a030", "#d1495b", "#66a182", "#7d5ba6")
DASHES = ("6 4", "none", "2 5", "none", "none", "none")


def draw(curves: Sequence[Curve]) -> str:
    """An SVG, complete in itself. The first curve is drawn dashed, above the others."""
    epochs = max(len(curve.losses()) for curve in curves)
    losses = [loss for curve in curves for loss in curve.losses()]
    low, high = math.log10(min(losses) * 0.9), math.log10(max(losses) * 1.1)
    most = max(size for curve in curves for size in curve.sizes())

    def x(epoch: float) -> float:
        return LEFT + epoch / epochs * (WIDTH - LEFT - RIGHT)

    def loss_y(loss: float) -> float:
        return LOSS_TOP + (high - math.log10(loss)) / (high - low) * LOSS_HEIGHT

    def size_y(size: float) -> float:
        return WORLD_TOP + WORLD_HEIGHT * (1 - size / (most + 0.5))

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}" role="img" '
        'font-family="system-ui, sans-serif" font-size="12">',
        "<title>Training loss by epoch under the same resizes, by what becomes of batch and rate</title>",
        f'<rect width="{WIDTH:.0f}" height="{HEIGHT:.0f}" fill="white"/>',
        *_loss_axis(low, high, loss_y),
        *_world_axis(most, size_y),
        *(_text(x(at), HEIGHT - 24, str(at), "middle") for at in range(0, epochs + 1, 4)),
        _text(x(epochs / 2), HEIGHT - 6, "epochs", "middle"),
        _text(LEFT, LOSS_TOP - 8, "training loss, mean of each epoch", "start"),
        _text(LEFT, WORLD_TOP - 8, "ranks (area), and the learning rate's factor (lines)", "start"),
        _area(curves[-1].sizes(), x, size_y),
    ]
    for number, curve in list(enumerate(curves))[::-1]:
        points = [(x(epoch + 0.5), loss_y(loss)) for epoch, loss in enumerate(curve.losses())]
        parts += [_line(points, number), _line(_factors(curve, x, size_y), number, 1.2)]
        parts += _legend(curve, number)
    return "\n".join([*parts, "</svg>", ""])


def _loss_axis(low: float, high: float, y: Callable[[float], float]) -> list[str]:
    powers = range(math.floor(low), math.ceil(high) + 1)
    ticks = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
    return [part for loss in ticks if low <= math.log10(loss) <= high for part in _tick(y(loss), f"{loss:g}")]


def _world_axis(most: int, y: Callable[[float], float]) -> list[str]:
    return [part for size in range(most + 1) for part in _tick(y(size), str(size))]


def _tick(y: float, label: str) -> list[str]:
    rule = f'<path d="M{LEFT:.0f},{y:.1f} H{WIDTH - RIGHT:.0f}" stroke="#dddddd"/>'
    return [rule, _text(LEFT - 8, y + 4, label, "end")]


def _area(sizes: Sequence[int], x: Callable[[float], float], y: Callable[[float], float]) -> str:
    stairs = " ".join(f"V{y(size):.1f} H{x(epoch + 1):.1f}" for epoch, size in enumerate(sizes))
    return f'<path d="M{x(0):.1f},{y(0):.1f} {stairs} V{y(0):.1f} Z" fill="#3b7dd8" opacity="0.12"/>'


def _factors(curve: Curve, x: Callable[[float], float], y: Callable[[float], float]) -> list[tuple[float, float]]:
    """By step, each at its place in its epoch; as many points as are needed to see the ramps."""
    in_epoch: dict[int, list[float]] = {}
    for step in curve.steps:
        in_epoch.setdefault(step["epoch"], []).append(step["factor"])
    points = [
        (x(epoch + place / len(factors)), y(factor))
        for epoch, factors in in_epoch.items()
        for place, factor in enumerate(factors)
    ]
    turns = [
        point
        for before, point, after in zip(points, points[1:], points[2:], strict=False)
        if not math.isclose(point[1] - before[1], after[1] - point[1], abs_tol=1e-9)
    ]
    return [points[0], *turns, points[-1]]


def _line(points: Sequence[tuple[float, float]], number: int, width: float = 2.0) -> str:
    path = "M" + " L".join(f"{at:.1f},{value:.1f}" for at, value in points)
    style = f'stroke="{COLOURS[number]}" stroke-width="{width}" stroke-dasharray="{DASHES[number]}"'
    return f'<path d="{path}" fill="none" {style}/>'


def _legend(curve: Curve, number: int) -> list[str]:
    x, y = WIDTH - RIGHT + 14, LOSS_TOP + 16 + number * 44
    first, _, second = curve.case.name.partition(", ")
    return [
        _line([(x, y - 4), (x + 22, y - 4)], number),
        _text(x + 28, y, first, "start"),
        _text(x + 28, y + 15, second, "start"),
    ]


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="#222222">{escape(words)}</text>'
