"""Training whose state counts how often each shard is in it: by Shards, or by a plain DistributedSampler."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from typing import Any

import torch
from exact_engines import kit
from pace import WORKER, Pace
from torch.utils.data import DistributedSampler

from elastic_runtime import Shards
from elastic_runtime.torch import DurableState
from elastic_runtime.world import WORLD, current_world

COUNT, PER_STEP, SECONDS, PLAIN = json.loads(os.environ["SHARDS"])
"""Shards, those of a step, seconds that one takes, and whether to use the sampler."""
SLOWNESS = 1 + 2 * (int(os.environ[WORKER].rpartition("-")[2]) % 2)
"""Every other worker is three times as slow."""


def add_up(counts: torch.Tensor) -> torch.Tensor:
    """Over all ranks."""
    if "engines.torch" in os.environ[WORLD]:
        torch.distributed.all_reduce(counts)
        return counts
    import horovod.torch as hvd

    return hvd.allreduce(counts, op=hvd.Sum, name="counts")


def by_shards(state: Any) -> Iterator[Iterator[int]]:
    """Numbers of this rank's shards, for each step."""
    for step in Shards(COUNT, per_step=PER_STEP, seed=0, state=state):
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


def main() -> None:
    pace = Pace.from_environment()
    torch.set_num_threads(1)
    engine = kit()
    state = DurableState(counts=torch.zeros(COUNT, dtype=torch.int64))

    @engine.run
    def train(state: Any) -> None:
        pace.hold(state)
        for step in by_sampler(state) if PLAIN else by_shards(state):
            counts = torch.zeros_like(state.counts)
            for index in step:
                pace.note(took=index, step=state.step)
                time.sleep(SECONDS * SLOWNESS)
                counts[index] += 1
            state.counts = state.counts + add_up(counts)
            state.commit()
            pace.hold(state)

    train(state)
    pace.note(counts=state.counts.tolist())


main()
