"""Training whose state counts how often each shard is in it: by Shards of each kind, or a DistributedSampler."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import standing_still
import torch
from exact_engines import kit
from pace import WORKER, Pace
from torch.utils.data import DistributedSampler

from elastic_runtime import Shards
from elastic_runtime.torch import DurableState
from elastic_runtime.world import WORLD, current_world

COUNT, PER_STEP, SECONDS, BY, *LEASE = json.loads(os.environ["SHARDS"])
"""Shards, those of a step (or seconds between meetings), seconds that one takes, what gives them, and a lease."""
RATE = 300
"""Shards that come in a second, if they are a stream's."""
SLOWNESS = 1 + 2 * (int(os.environ[WORKER].rpartition("-")[2], 36) % 2)
"""Every other worker is three times as slow."""


def add_up(counts: torch.Tensor) -> torch.Tensor:
    """Over all ranks."""
    if "engines.torch" in os.environ[WORLD]:
        torch.distributed.all_reduce(counts)
        return counts
    import horovod.torch as hvd

    return hvd.allreduce(counts, op=hvd.Sum, name="counts")


class Local:
    """What a rank learns between two meetings."""

    def __init__(self) -> None:
        self.counts = torch.zeros(COUNT, dtype=torch.int64)

    def state_dict(self) -> dict[str, Any]:
        return {"counts": self.counts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.counts = state["counts"]


def by_shards(state: Any, pace: Pace) -> Iterator[Iterator[int]]:
    """Numbers of this rank's shards, for each step."""
    begun = Path(pace.folder, "go").stat().st_mtime

    def growing() -> tuple[int, bool]:
        count = min(COUNT, int((time.time() - begun) * RATE))
        return count, count == COUNT

    of: dict[str, Any] = {"stream": growing, "every": 0.5} if BY == "stream" else {"count": COUNT}
    for step in Shards(per_step=PER_STEP, seed=0, state=state, **of):
        yield (shard.index for shard in step)


def by_sampler(state: Any) -> Iterator[Iterator[int]]:
    """The same, as scripts have it that count their batches and make the sampler anew in each world."""
    world = current_world()
    sampler = DistributedSampler(range(COUNT), world.size, world.rank)
    size = -(-PER_STEP // world.size)
    own = list(sampler)
    while own[state.step * size :]:
        begin, state.step = state.step * size, state.step + 1
        yield iter(own[begin : begin + size])


def together(state: Any, pace: Pace) -> None:
    """Ranks add up each step."""
    for step in by_sampler(state) if BY == "sampler" else by_shards(state, pace):
        counts = torch.zeros_like(state.counts)
        for index in step:
            train_on(index, counts, state, pace)
        state.counts = state.counts + add_up(counts)
        world = current_world()
        pace.note(step=state.step, rank=world.rank, size=world.size, time=time.monotonic())
        state.commit()
        pace.hold(state)


def apart(state: Any, pace: Pace, local: Local, shards: Shards) -> None:
    """Ranks add up what each has at their meetings."""
    local.counts = torch.zeros_like(local.counts)
    for round_ in shards:
        for shard in round_:
            train_on(shard.index, local.counts, state, pace)
        round_.meet()
        total = add_up(local.counts.clone())
        assert int(total.sum()) == round_.size, "the state is to have what its position says"
        state.counts = state.counts + total
        state.commit()
        local.counts = torch.zeros_like(local.counts)
        pace.note(met=round_.step, size=round_.size, mine=round_.taken)
        pace.hold(state)


def train_on(index: int, counts: torch.Tensor, state: Any, pace: Pace) -> None:
    """One shard."""
    pace.note(took=index, step=state.step)
    if pace.stand:
        standing_still.hold(pace, state.step)
    time.sleep(SECONDS * SLOWNESS)
    counts[index] += 1


def main() -> None:
    pace = Pace.from_environment()
    torch.set_num_threads(1)
    engine = kit()
    state = DurableState(counts=torch.zeros(COUNT, dtype=torch.int64), shards=[])
    local = Local()
    # Made once, for it keeps what a rank has while its world is lost.
    shards = Shards(
        COUNT, mode="asynchronous", every=PER_STEP, lease=LEASE[0] if LEASE else 600, state=state, local=[local]
    )

    @engine.run
    def train(state: Any) -> None:
        pace.hold(state)
        if BY == "asynchronous":
            apart(state, pace, local, shards)
        else:
            together(state, pace)

    train(state)
    pace.note(counts=state.counts.tolist())


main()
