"""Training without torch, on the engine of ``tests/engines/distribution``; its weights are the same in any world.

Each sample's gradient is rounded to a multiple of :data:`GRAIN`, so that sums of them are exact in any order.
"""

from __future__ import annotations

import hashlib
import random
import time

from pace import Pace

from elastic_runtime.torch import report
from hub_engine.rank import WORLD, State, run

SAMPLES, BATCH, FEATURES = 50, 8, 4  # 7 steps an epoch; the last has 2 samples, so that shares are uneven, or empty
STEPS = -(-SAMPLES // BATCH)
RATE, MOMENTUM, GRAIN = 0.01, 0.9, 2.0**-24
DIGEST_EVERY = 5
"""Steps."""


def dataset() -> list[tuple[list[float], float]]:
    made = random.Random(3)
    samples = [[made.gauss(0, 1) for _ in range(FEATURES)] for _ in range(SAMPLES)]
    return [(features, features[0] - 2 * features[1] + 0.5) for features in samples]


def batch(step: int) -> list[int]:
    """Samples of global step ``step``, from 1, whatever the world."""
    epoch, position = divmod(step - 1, STEPS)
    order = list(range(SAMPLES))
    random.Random(epoch).shuffle(order)
    return order[position * BATCH : (position + 1) * BATCH]


def gradient(weights: list[float], features: list[float], target: float) -> list[float]:
    error = sum(weight * feature for weight, feature in zip(weights, features, strict=True)) - target
    return [round(error * feature / GRAIN) * GRAIN for feature in features]


def digests(state: State) -> dict[str, str]:
    """Of all that the state keeps."""
    values = {"weights": state.weights, "momentum": state.momentum}
    return {name: hashlib.sha256(repr(value).encode()).hexdigest()[:12] for name, value in values.items()}


def main() -> None:
    pace, data = Pace.from_environment(), dataset()
    pace.door()
    state = State(weights=[0.0] * FEATURES, momentum=[0.0] * FEATURES)

    def train(state: State) -> None:
        pace.hold(state)
        while state.step < pace.epochs * STEPS:
            share = batch(state.step + 1)[WORLD.rank :: WORLD.size]
            parts = WORLD.gather([gradient(state.weights, *data[index]) for index in share])
            total = [sum(column) for column in zip(*(each for part in parts for each in part), strict=True)]
            state.momentum = [MOMENTUM * old + new for old, new in zip(state.momentum, total, strict=True)]
            state.weights = [weight - RATE * move for weight, move in zip(state.weights, state.momentum, strict=True)]
            state.step += 1
            found = digests(state) if state.step % DIGEST_EVERY == 0 else None
            pace.note(step=state.step, rank=WORLD.rank, size=WORLD.size, time=time.monotonic(), digests=found)
            if state.step % pace.commit_every == 0:
                state.commit()
                report(epoch=(state.step - 1) // STEPS)
            pace.hold(state)

    run(train, state)
    pace.note(done=state.step, weights=state.weights)


main()
