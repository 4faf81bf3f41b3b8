"""Runs of :mod:`.training` under our launcher, with resizes at the ends of epochs."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.ours import OurLauncher
from benchmarks.harness.sides import Job, RoundFailed

TRAINING = Path(__file__).resolve().parent / "training.py"
DAGS = Path(__file__).resolve().parents[2] / "dags"
LOOK = 0.05
LONGEST = 900.0
"""Seconds for a whole run."""


@dataclass(frozen=True, slots=True)
class Case:
    """One of the runs."""

    name: str
    """In the legend."""
    batch: str
    """Field of :class:`~benchmarks.batches.training.Settings`."""
    plan: dict[int, int]
    """Epoch to world size; the first entry is that of epoch 0."""


@dataclass(frozen=True, slots=True)
class Curve:
    """What came of it."""

    case: Case
    steps: tuple[dict[str, Any], ...]
    """``step``, ``epoch``, ``size``, ``loss``, ``samples`` and ``factor`` of each; the last time, if done again."""
    epochs: tuple[dict[str, Any], ...]
    """``epochs`` (done), ``test_loss`` and ``accuracy``."""

    def losses(self) -> list[float]:
        """Mean training loss of each epoch, over its samples."""
        sums: dict[int, tuple[float, int]] = {}
        for step in self.steps:
            loss, samples = sums.get(step["epoch"], (0.0, 0))
            sums[step["epoch"]] = loss + step["loss"] * step["samples"], samples + step["samples"]
        return [loss / samples for _, (loss, samples) in sorted(sums.items())]

    def sizes(self) -> list[int]:
        """World size in each epoch."""
        found = {step["epoch"]: step["size"] for step in self.steps}
        return [found[epoch] for epoch in sorted(found)]


def run(case: Case, folder: Path, shards: Path, epochs: int) -> Curve:
    """Train. Raises RoundFailed with where its log is."""
    folder.mkdir(parents=True)
    words = ("--folder", str(folder), "--shards", str(shards), "--epochs", str(epochs), "--batch", case.batch)
    command = ("python", str(TRAINING), *words, "--plan", json.dumps(case.plan))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(DAGS), os.environ.get("PYTHONPATH", "")])
    launched = OurLauncher().launch(Job(folder, command, case.plan[0]))
    ahead = {epoch: size for epoch, size in case.plan.items() if epoch}
    deadline = time.monotonic() + LONGEST
    while launched.process.poll() is None:
        for epoch in [epoch for epoch in ahead if (folder / f"at-{epoch}").exists()]:
            launched.resize(ahead.pop(epoch))
        if time.monotonic() > deadline:
            launched.process.terminate()
        time.sleep(LOOK)
    if launched.process.returncode != 0:
        raise RoundFailed(f"{case.name} has failed; its log: {folder / 'run' / 'log'}")
    return read(case, folder)


def read(case: Case, folder: Path) -> Curve:
    """What rank 0 noted."""
    notes = [json.loads(line) for line in (folder / "notes.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = {note["step"]: note for note in notes if "step" in note}
    epochs = {note["epochs"]: note for note in notes if "epochs" in note}
    return Curve(case, tuple(steps[step] for step in sorted(steps)), tuple(epochs[epoch] for epoch in sorted(epochs)))
