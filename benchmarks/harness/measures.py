"""What is measured, in which unit, and what has to be reached."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from benchmarks.harness.statistics import Centre


class Measure(StrEnum):
    """Keys of ``results.json``."""

    START = "start"
    SCALE_OUT = "scale_out"
    LEAVE = "planned_leave"
    LEAVE_PAUSE = "planned_leave_pause"
    LEAVE_LOST = "planned_leave_steps_lost"
    KILL = "sigkill"
    KILL_MEAN = "sigkill_mean"
    KILL_LOST = "sigkill_steps_lost"
    THROUGHPUT = "throughput"
    THROUGHPUT_STATIC = "throughput_static"
    HELPERS = "helpers_throughput"
    TORCH_THROUGHPUT_SMALL = "torch_throughput_small"
    TORCH_SCALE_OUT_PAUSE_SMALL = "torch_scale_out_pause_small"
    TORCH_LEAVE_PAUSE_SMALL = "torch_leave_pause_small"
    TORCH_KILL_SMALL = "torch_kill_small"
    TORCH_THROUGHPUT_LARGE = "torch_throughput_large"
    TORCH_SCALE_OUT_PAUSE_LARGE = "torch_scale_out_pause_large"
    TORCH_LEAVE_PAUSE_LARGE = "torch_leave_pause_large"
    TORCH_KILL_LARGE = "torch_kill_large"
    TENTH_THROUGHPUT_SMALL = "tenth_throughput_small"
    TENTH_THROUGHPUT_LARGE = "tenth_throughput_large"
    TORCHFT_THROUGHPUT_SMALL = "torchft_throughput_small"
    TORCHFT_SCALE_OUT_PAUSE_SMALL = "torchft_scale_out_pause_small"
    TORCHFT_LEAVE_PAUSE_SMALL = "torchft_leave_pause_small"
    TORCHFT_KILL_SMALL = "torchft_kill_small"
    TORCHFT_THROUGHPUT_LARGE = "torchft_throughput_large"
    TORCHFT_SCALE_OUT_PAUSE_LARGE = "torchft_scale_out_pause_large"
    TORCHFT_LEAVE_PAUSE_LARGE = "torchft_leave_pause_large"
    TORCHFT_KILL_LARGE = "torchft_kill_large"
    SHARDED_THROUGHPUT = "sharded_throughput"
    SHARDED_LEAVE = "sharded_leave_pause"
    SHARDED_SCALE_OUT = "sharded_scale_out_pause"
    SHARDED_KILL = "sharded_kill"


class Bound(StrEnum):
    """What a target bounds."""

    RATIO_AT_MOST = "ratio <="
    RATIO_AT_LEAST = "ratio >="
    OURS_AT_MOST = "ours <="


@dataclass(frozen=True, slots=True)
class Target:
    """What has to be reached."""

    bound: Bound
    limit: float

    def met(self, ours: float, ratio: float | None) -> bool:
        """Whether one side's figure and the ratio reach it; a ratio that does not exist reaches nothing."""
        match self.bound:
            case Bound.OURS_AT_MOST:
                return ours <= self.limit
            case Bound.RATIO_AT_MOST:
                return ratio is not None and ratio <= self.limit
            case Bound.RATIO_AT_LEAST:
                return ratio is not None and ratio >= self.limit

    def __str__(self) -> str:
        return f"{self.bound} {self.limit:.3g}"


@dataclass(frozen=True, slots=True)
class Meaning:
    """How a measure is told to people."""

    title: str
    unit: str
    target: Target | None = None
    centre: Centre = Centre.MEDIAN


MEANINGS: dict[Measure, Meaning] = {
    Measure.START: Meaning("Start: launcher's process started → first step", "s"),
    Measure.SCALE_OUT: Meaning("Scale-out 2→3: size asked → first step at 3", "s", Target(Bound.RATIO_AT_MOST, 1 / 10)),
    Measure.LEAVE: Meaning("Planned leave 3→2: size asked → first step at 2", "s", Target(Bound.RATIO_AT_MOST, 1 / 3)),
    Measure.LEAVE_PAUSE: Meaning(
        "Planned leave 3→2: pause of the remaining ranks", "s", Target(Bound.RATIO_AT_MOST, 1 / 3)
    ),
    Measure.LEAVE_LOST: Meaning("Planned leave 3→2: steps lost", "steps", Target(Bound.OURS_AT_MOST, 0)),
    Measure.KILL: Meaning(
        "SIGKILL of one rank of 3 → next step of the others", "s", Target(Bound.RATIO_AT_MOST, 1 / 20)
    ),
    Measure.KILL_MEAN: Meaning(
        "The same, mean: the peer either stalls for 30 s or does not",
        "s",
        Target(Bound.RATIO_AT_MOST, 1 / 20),
        Centre.MEAN,
    ),
    Measure.KILL_LOST: Meaning("SIGKILL of one rank of 3: steps lost", "steps"),
    Measure.THROUGHPUT: Meaning("Throughput of 2 ranks, everything on", "steps/s", Target(Bound.RATIO_AT_LEAST, 0.99)),
    Measure.THROUGHPUT_STATIC: Meaning(
        "The same; the peer is a `horovodrun` that is not elastic", "steps/s", Target(Bound.RATIO_AT_LEAST, 0.99)
    ),
    Measure.HELPERS: Meaning("Throughput of 2 ranks: our helpers by stock ones, both under our launcher", "steps/s"),
    Measure.TORCH_THROUGHPUT_SMALL: Meaning(
        "0.1 M parameters: throughput of 2 ranks", "steps/s", Target(Bound.RATIO_AT_LEAST, 0.99)
    ),
    Measure.TORCH_SCALE_OUT_PAUSE_SMALL: Meaning("Scale-out 2→3: pause of both", "s", Target(Bound.OURS_AT_MOST, 0.3)),
    Measure.TORCH_LEAVE_PAUSE_SMALL: Meaning(
        "Planned leave 3→2: pause of the remaining", "s", Target(Bound.RATIO_AT_MOST, 0.05)
    ),
    Measure.TORCH_KILL_SMALL: Meaning("SIGKILL of one rank of 3 → next step", "s", Target(Bound.RATIO_AT_MOST, 0.1)),
    Measure.TORCH_THROUGHPUT_LARGE: Meaning(
        "10 M parameters: throughput of 2 ranks", "steps/s", Target(Bound.RATIO_AT_LEAST, 0.99)
    ),
    Measure.TORCH_SCALE_OUT_PAUSE_LARGE: Meaning("Scale-out 2→3: pause of both", "s", Target(Bound.OURS_AT_MOST, 0.3)),
    Measure.TORCH_LEAVE_PAUSE_LARGE: Meaning(
        "Planned leave 3→2: pause of the remaining", "s", Target(Bound.OURS_AT_MOST, 0.1)
    ),
    Measure.TORCH_KILL_LARGE: Meaning("SIGKILL of one rank of 3 → next step", "s", Target(Bound.RATIO_AT_MOST, 0.1)),
    Measure.TENTH_THROUGHPUT_SMALL: Meaning(
        "0.1 M parameters, `commit_every=10`: throughput of 2 ranks", "steps/s", Target(Bound.RATIO_AT_LEAST, 0.99)
    ),
    Measure.TENTH_THROUGHPUT_LARGE: Meaning(
        "10 M parameters, `commit_every=10`: throughput of 2 ranks", "steps/s", Target(Bound.RATIO_AT_LEAST, 0.99)
    ),
    Measure.SHARDED_THROUGHPUT: Meaning("30 M parameters, sharded: throughput of 4 ranks", "steps/s"),
    Measure.SHARDED_LEAVE: Meaning("Planned leave 4→3: pause of the remaining", "s"),
    Measure.SHARDED_SCALE_OUT: Meaning("Scale-out 3→4: pause of the three", "s"),
    Measure.SHARDED_KILL: Meaning("SIGKILL of one rank of 4 → next step", "s"),
}
MEANINGS |= {
    Measure(f"torchft_{each.removeprefix('torch_')}"): replace(
        meaning, title=f"Peer TorchFT. {meaning.title}", target=None
    )
    for each, meaning in MEANINGS.items()
    if each.startswith("torch_")
}
