"""Rounds of a scenario, alternating between the sides."""

from __future__ import annotations

import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness.measures import Measure
from benchmarks.harness.scenarios import Chance, Figures, Pace, Scenario
from benchmarks.harness.sides import RoundFailed, Side, Training

OURS, PEER = "ours", "peer"


@dataclass(slots=True)
class Collected:
    """Figures of all rounds, by measure and side, and what went wrong on the way."""

    figures: dict[Measure, dict[str, list[float]]] = field(default_factory=lambda: defaultdict(_no_figures))
    troubles: list[str] = field(default_factory=list)
    """Rounds that failed and ends that were not clean, for people."""

    def add(self, side: str, figures: Figures) -> None:
        """Keep one training's figures."""
        for measure, value in figures.items():
            self.figures[measure][side].append(value)


def run_scenario(
    scenario: Scenario, rounds: int, pace: Pace, folder: Path, collected: Collected, say: Callable[[str], None]
) -> None:
    """Play so many rounds of both sides. A round that fails is told and left out; its folder is kept."""
    for number in range(1, rounds + 1):
        chance = Chance.of(scenario.name, number)
        sides = [(OURS, scenario.ours, scenario.ours_input), (PEER, scenario.peer, scenario.peer_input)]
        # ABBA: whichever goes first meets a machine that is a little cooler.
        for label, side, batches in sides if number % 2 else sides[::-1]:
            name = f"{scenario.name} {number}/{rounds} {label}"
            begin = time.monotonic()
            training_folder = folder / name.replace(" ", "-").replace("/", "of")
            try:
                figures = _play(scenario, side, batches, training_folder, pace, chance, name, collected.troubles)
            except RoundFailed as failure:
                collected.troubles.append(f"{name}: {failure}")
                say(f"{name:24} FAILED: {failure}")
                continue
            collected.add(label, figures)
            say(f"{name:24} {_told(figures)}  [{time.monotonic() - begin:.0f} s]")


def _play(
    scenario: Scenario, side: Side, batches: str, folder: Path, pace: Pace, chance: Chance, name: str,
    troubles: list[str],
) -> Figures:  # fmt: skip
    with Training(side, folder, scenario.size, batches) as training:
        figures = scenario.play(training, pace, chance)
    if training.exit_code != 0 or training.left_behind:
        troubles.append(f"{name}: exit code {training.exit_code}, {training.left_behind} processes left behind")
    else:
        shutil.rmtree(folder)
    return figures


def _told(figures: Figures) -> str:
    return "  ".join(f"{measure} {value:.3f}" for measure, value in figures.items())


def _no_figures() -> dict[str, list[float]]:
    return {OURS: [], PEER: []}


def chosen(scenarios: Sequence[Scenario], only: Sequence[Measure]) -> list[Scenario]:
    """Those that yield one of the measures wanted: as few as will do; all when nothing particular is wanted."""
    if not only:
        return list(scenarios)
    missing, few = set(only), []
    for scenario in scenarios:
        if missing & scenario.measures:
            few.append(scenario)
            missing -= scenario.measures
    return few
