"""The traces that ship with the benchmark, made up from a seed; :func:`write_all` makes them again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

from elastic_runtime.rehearsal.trace import HOUR, Stay, trace_text
from elastic_runtime.rehearsal.trace_files import SHIPPED

MINUTE = 60.0
STORM = 0.64
"""Losses per node-hour while there are any; with the times in which there are none it comes to 0.6."""


def calm(draw: Random) -> tuple[list[Stay], float]:
    """16 machines for 12 hours; three are taken, each replaced within ten minutes."""
    duration = 12 * HOUR
    stays = [Stay(f"node{number:03}", 0.0, duration) for number in range(16)]
    for number in range(3):
        lost, moment = stays[number], (number + draw.uniform(0.2, 0.8)) * duration / 3
        stays[number] = Stay(lost.name, 0.0, moment)
        stays.append(Stay(f"node{len(stays):03}", moment + draw.uniform(2, 10) * MINUTE, duration))
    return stays, duration


def stormy(draw: Random) -> tuple[list[Stay], float]:
    """16 to 32 machines for 12 hours, each lost 0.6 times an hour.

    A birth-death process: losses by chance, :data:`STORM` for each machine and hour, while there are more than 16;
    arrivals by chance, as many as 24 machines lose, while there are fewer than 32.
    """
    rate, least, usual, most, duration = STORM / HOUR, 16, 24, 32, 12 * HOUR
    begins = {f"node{number:03}": 0.0 for number in range(usual)}
    stays: list[Stay] = []
    moment, number = 0.0, usual
    while True:
        losing = rate * len(begins) if len(begins) > least else 0.0
        coming = rate * usual if len(begins) < most else 0.0
        moment += draw.expovariate(losing + coming)
        if moment >= duration:
            break
        if draw.random() * (losing + coming) < losing:
            name = draw.choice(sorted(begins))
            stays.append(Stay(name, begins.pop(name), moment))
        else:
            begins[f"node{number:03}"] = moment
            number += 1
    return [*stays, *(Stay(name, begin, duration) for name, begin in begins.items())], duration


def fleet_loss(draw: Random) -> tuple[list[Stay], float]:
    """16 machines for 8 hours; all gone at once after 2 h for 20 minutes, and one by one around 5 h for an hour."""
    duration, stays, number = 8 * HOUR, [], 0
    for begin, end, spread in ((0.0, 2.0, 0.0), (2.0 + 1 / 3, 5.0, 90.0), (6.0, 8.0, 0.0)):
        for _ in range(16):
            arrival = begin * HOUR + (draw.uniform(0, 4) * MINUTE if begin else 0.0)
            stays.append(Stay(f"node{number:03}", arrival, end * HOUR - draw.uniform(0, spread)))
            number += 1
    return stays, duration


def flapping(draw: Random) -> tuple[list[Stay], float]:
    """12 machines that stay for 6 hours, and 4 that come for 30 to 180 s and go for 30 to 120 s, again and again."""
    duration = 6 * HOUR
    stays = [Stay(f"node{number:03}", 0.0, duration) for number in range(12)]
    number = len(stays)
    for _ in range(4):
        moment = draw.uniform(0, 300)
        while moment < duration:
            end = moment + draw.uniform(30, 180)
            stays.append(Stay(f"node{number:03}", moment, min(end, duration)))
            moment, number = end + draw.uniform(30, 120), number + 1
    return stays, duration


MADE: Mapping[str, Callable[[Random], tuple[list[Stay], float]]] = {
    "calm": calm,
    "stormy": stormy,
    "fleet_loss": fleet_loss,
    "flapping": flapping,
}


def make(name: str) -> str:
    """One of them, as CSV; always the same."""
    stays, duration = MADE[name](Random(name))  # noqa: S311  # no secret
    return f"# Made up: {name}, by benchmarks/traces/made.py\n" + trace_text(stays, duration)


def write_all(folder: Path = SHIPPED) -> None:
    """Write them to files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in MADE:
        (folder / f"{name}.csv").write_text(make(name), encoding="utf-8")


if __name__ == "__main__":
    write_all()
