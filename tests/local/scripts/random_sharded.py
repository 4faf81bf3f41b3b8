"""Random states of which each rank has a part, from world to world: each full tensor stays what it was, on all ranks.

Three processes are in worlds of two and of three ranks in turn. Some of them leave in order, others are lost, and
those that come have nothing. Between two worlds all that is kept may come from a durable checkpoint.

The third argument is a folder for checkpoints. The first world of an even seed has two ranks, of an odd one three.
"""

from __future__ import annotations

import gc
import os
import random
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from random_checks import canonical, check_equal, main
from random_objects import DEVICE, Kept, MasterWeights, Tied, an_optimizer, encode
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard

from elastic_runtime.engines.through_worlds import into_world
from elastic_runtime.engines.torch import own_group
from elastic_runtime.engines.torch.rank import WorldChanges, forget_meshes
from elastic_runtime.errors import StatesDiffer
from elastic_runtime.run.spec import CheckpointSpec
from elastic_runtime.torch import ShardedState
from elastic_runtime.training.state.verification import FEWEST_COMMITS
from elastic_runtime.world import current_world

PROCESSES = 3
OWN = "own"
"""A buffer that each rank has otherwise, as running statistics; a sync gives all of them rank 0's."""
LONG = timedelta(minutes=10)


class Odd(nn.Module):
    """Parameters of unequal shapes, with fewer rows than ranks and with none, and buffers of many types."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width))
        self.row = nn.Parameter(torch.randn(1, width))
        self.frozen = nn.Parameter(torch.randn(width, 2, 1), requires_grad=False)

    def count_up(self, width: int) -> None:
        """Have buffers, whose types ``to`` does not change any more."""
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("seen", torch.zeros(width, dtype=torch.bool))
        self.register_buffer("phase", torch.zeros(2, dtype=torch.complex64))
        self.register_buffer("levels", torch.zeros(3, dtype=torch.uint8))
        self.register_buffer("scale", torch.ones(2).to(torch.float8_e4m3fn))
        self.register_buffer("nothing", torch.zeros(0))
        self.register_buffer(OWN, torch.full((2,), float(dist.get_rank())))

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.seen[int(self.count) % len(self.seen)] = True
        self.phase += 1j
        self.levels += 1
        self.own += dist.get_rank()
        return (data @ self.weight).tanh() + self.row


def a_block(choose: random.Random, width: int) -> nn.Module:
    block: nn.Module = choose.choice((
        lambda: nn.Linear(width, width, bias=choose.random() < 0.5),
        lambda: nn.Sequential(nn.Linear(width, 7), nn.BatchNorm1d(7), nn.Linear(7, width)),
        lambda: nn.Sequential(nn.Linear(width, 1), nn.Linear(1, width), nn.LayerNorm(width)),
        lambda: Tied(width),
        lambda: Odd(width),
    ))()  # fmt: skip
    floats = (torch.float32, torch.float32, torch.float64, torch.bfloat16)
    block = block.to(DEVICE, choose.choice(floats))
    if isinstance(block, Odd):
        block.count_up(width)
    return block.to(DEVICE)


class Blocks(nn.Module):
    """One after the other, each in its own type."""

    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            data = block(data.to(next(block.parameters()).dtype))
        return data


def make(seed: int) -> tuple[nn.Module, torch.optim.Optimizer | None]:
    """The model and the optimizer of a seed, sharded over the present world."""
    choose = random.Random(f"build {seed}")
    torch.manual_seed(seed)
    width = choose.choice((2, 3, 4, 6, 7))
    model = Blocks([a_block(choose, width) for _ in range(choose.randint(1, 4))])
    size = dist.get_world_size()
    meshes = ((size,), (size,), (size, 1), (1, size))
    shape = choose.choice(meshes)
    mesh = init_device_mesh(DEVICE.type, shape, mesh_dim_names=("replicas", "parts")[-len(shape) :])
    by_columns = choose.random() < 0.3 and width == 6

    def placement(parameter: nn.Parameter) -> Shard | None:
        even = by_columns and parameter.ndim > 1 and parameter.shape[1] % 6 == 0
        return Shard(1) if even else None

    is_one_type = len({each.dtype for each in model.parameters()}) == 1
    for block in model.blocks:
        if not is_one_type or choose.random() < 0.7:
            fully_shard(block, mesh=mesh, shard_placement_fn=placement, reshard_after_forward=bool(choose.randrange(2)))
    fully_shard(model, mesh=mesh, shard_placement_fn=placement)
    model.width = width
    if choose.random() < 0.1:
        return model, None
    return model, MasterWeights(model.parameters()) if choose.random() < 0.3 else an_optimizer(choose, model)


def whole(value: Any) -> Any:
    """With full tensors; a collective."""
    if isinstance(value, DTensor):
        return value.cpu().full_tensor()  # As in ``rich_state.whole``.
    if isinstance(value, dict):
        return {key: whole(item) for key, item in value.items()}
    return type(value)(map(whole, value)) if type(value) in (list, tuple) else value


def without_own(everything: dict[str, Any]) -> dict[str, Any]:
    """What is the same on all ranks at each step."""
    model = {name: value for name, value in everything["'the model'"].items() if not name.endswith(f".{OWN}'")}
    return {**everything, "'the model'": model}


class Objects(Kept):
    """Kept by a state of which each rank has a part; beside that, what every rank has whole."""

    def __init__(self, seed: int, process: int, **options: Any) -> None:
        super().__init__(seed, process)
        self.state = ShardedState(lambda: make(seed), **options, **self.kept, step=self.step)

    def train(self, seed: int) -> None:
        super().train(seed)
        state = self.state
        if state is None or state.model is None or state.optimizer is None:
            return
        given = torch.randn(4, state.model.width, generator=torch.Generator().manual_seed(seed)).to(DEVICE)
        state.optimizer.zero_grad()
        state.model(given).pow(2).mean().backward()
        state.optimizer.step()

    def everything(self) -> dict[str, Any]:
        """A collective."""
        sharded = {"the model": self.state.model.state_dict()}
        if self.state.optimizer is not None:
            state = self.state.optimizer.state_dict()
            sharded["the optimizer"] = {**state, "state": dict(sorted(state["state"].items()))}
        encoded: dict[str, Any] = canonical(whole(sharded), encode)
        return {**super().everything(), **encoded}


class Worlds:
    """Process groups, one after the other; this process is in some of them."""

    def __init__(self) -> None:
        self.process, port = int(os.environ["RANK"]), int(os.environ["MASTER_PORT"])
        self._store = dist.TCPStore("127.0.0.1", port, PROCESSES, self.process == 0, timeout=LONG)
        self.number = 0

    def enter(self, members: Sequence[int]) -> bool:
        """Be in the next world, if this process is one of its members, which are given by rank."""
        self.number += 1
        if self.process not in members:
            return False
        store, rank = dist.PrefixStore(str(self.number), self._store), members.index(self.process)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=len(members), timeout=LONG)
        return True

    def leave(self) -> None:
        """Be in none."""
        own_group.let_go()
        if dist.is_initialized():
            dist.destroy_process_group()
        forget_meshes()

    def meet(self) -> None:
        """Wait for all processes, at the end: the store is the first one's."""
        self._store.set(f"end {self.process}", "")
        self._store.wait([f"end {each}" for each in range(PROCESSES)])


class History:
    """One state through several worlds, as this process sees it.

    Args:
        seed: of all that is chosen.
        worlds: of this process.
        folder: for its checkpoints.
    """

    def __init__(self, seed: int, worlds: Worlds, folder: Path) -> None:
        self._seed, self._worlds, self._choose = seed, worlds, random.Random(f"worlds {seed}")
        self._copies, self._uri, self._tries = self._choose.random() < 0.7, (folder / str(seed)).as_uri(), 1
        self._members = self._choose.sample(range(PROCESSES), 2 + seed % 2)
        self._objects: Objects | None = None
        self._saved: dict[str, Any] | None = None

    def check(self) -> None:
        """All that is promised."""
        self._enter("in the first world")
        for _ in range(3):
            ways = (self._in_order, self._lose, self._resume) if self._copies else (self._in_order, self._resume)
            way = self._choose.choice(ways)
            way()
            self._enter(f"after {way.__name__}")
        self._worlds.leave()

    def _enter(self, when: str) -> None:
        """The next world: everything is what it was where this process knows, and the same everywhere."""
        steps = self._choose.randrange(3)
        if not self._worlds.enter(self._members):
            self._objects = self._saved = None
            return
        if self._objects is None:
            spec = CheckpointSpec(self._uri, every=3600, fence=self._tries)
            past = self._worlds.process + 3 * self._worlds.number
            self._objects = Objects(self._seed, past, checkpoint=spec, neighbour_copies=self._copies)
        into_world(self._objects.state, has_same=False)
        now = self._objects.everything()
        assert self._saved in (None, without_own(now)), f"not what was saved, {when}: {different(self._saved, now)}"
        check_equal(when, self._seed, now)
        self._train(steps)
        check_equal(f"some steps {when}", self._seed, without_own(self._objects.everything()))

    def _train(self, steps: int) -> None:
        for step in range(steps):
            self._there.train(self._seed + step)
            self._there.state.step += 1

    @property
    def _there(self) -> Objects:
        assert self._objects is not None
        return self._objects

    def _in_order(self) -> None:
        """After a commit some leave, and some come."""
        stay = self._some(self._members, 1)
        if self._objects is not None:
            leaving = frozenset(rank for rank, each in enumerate(self._members) if each not in stay)
            current_world().this_rank().leaving = self._worlds.number, leaving
            self._there.state.on_hosts_updated(float(self._worlds.number))
            self._saved = without_own(self._there.everything())
            with pytest.raises(WorldChanges):
                self._there.state.commit()
        self._follow(stay)

    def _lose(self) -> None:
        """At most one is lost, some steps after a commit."""
        stay = self._some(self._members, len(self._members) - 1)
        steps = self._choose.randrange(2)
        if self._objects is not None:
            self._saved = without_own(self._there.everything())
            self._there.state.commit()
            self._train(steps)
            self._there.state.restore()
        self._follow(stay)

    def _resume(self) -> None:
        """All end, and others begin with a checkpoint."""
        saved = None
        if self._objects is not None:
            saved = without_own(self._there.everything())
            self._there.state.on_run_end()
        self._follow([])
        self._saved, self._tries = saved, self._tries + 1

    def _follow(self, stay: Sequence[int]) -> None:
        """Those who stay have the first ranks of the next world."""
        if self._worlds.process not in stay:
            self._objects = self._saved = None
        self._worlds.leave()
        others = [each for each in range(PROCESSES) if each not in stay]
        self._choose.shuffle(others)
        size = self._choose.choice((2, 3))
        self._members = [*stay, *others][: max(size, len(stay))]

    def _some(self, those: Sequence[int], least: int) -> list[int]:
        chosen = set(self._choose.sample(those, self._choose.randint(least, len(those))))
        return [each for each in those if each in chosen]


def different(saved: dict[str, Any] | None, now: dict[str, Any]) -> str:
    """The first entry that is."""
    return next((f"{name}: {saved[name]} {now[name]}" for name in now if saved and saved.get(name) != now[name]), "")


def refuse_replicas_that_differ(worlds: Worlds) -> None:
    """Weights of which two ranks have the same part: made at random by each, and changed by one of them."""

    def build(seed: int, shape: tuple[int, ...], given: list[int]) -> tuple[nn.Module, None]:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).to(DEVICE)
        mesh = init_device_mesh(DEVICE.type, shape, mesh_dim_names=("replicas", "parts")[-len(shape) :])
        fully_shard(model, mesh=mesh, ignored_params={each for number in given for each in model[number].parameters()})
        return model, None

    for shape, given in (((2, 1), []), ((2,), [1])):
        if worlds.enter([0, 1]):
            state = ShardedState(lambda shape=shape, given=given: build(dist.get_rank(), shape, given))
            with pytest.raises(StatesDiffer, match=r"^model\.[01]\.(weight|bias) is not the same on the ranks 0 and 1"):
                state.sync()
            worlds.leave()
    if worlds.enter([0, 1]):
        state = ShardedState(lambda: build(0, (2,), [1]))
        state.sync()
        with torch.no_grad():
            state.model[1].weight += dist.get_rank()
        for _ in range(FEWEST_COMMITS - 1):
            state.commit()
        with pytest.raises(StatesDiffer, match=r"Differing from rank 0: rank 1: model\.1\.weight"):
            state.commit()
        worlds.leave()


torch.set_num_threads(1)
here = Worlds()
refuse_replicas_that_differ(here)
gc.freeze()  # Each sync collects garbage: a third of a seed's time, were it to look at all of torch.
main(lambda seed: History(seed, here, Path(sys.argv[3])).check())
here.meet()
