"""The world of a rank, by the collectives of torch.distributed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache, wraps
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook
from typing_extensions import override

from elastic_runtime.engines.torch.messages import NAME
from elastic_runtime.engines.torch.peers import prove_peers
from elastic_runtime.engines.torch.rank import Rank, this_rank
from elastic_runtime.engines.torch.sending import add_up, broadcast, exchange, maximum, meet
from elastic_runtime.script.standing import ledger
from elastic_runtime.script.unjoined import stepped
from elastic_runtime.world import World


class TorchWorld(World):
    """The world of torch.distributed's process groups."""

    @property
    @override
    def connected(self) -> bool:
        return dist.is_initialized()

    @property
    @override
    def name(self) -> str:
        return os.environ.get(NAME, "")

    @property
    @override
    def rank(self) -> int:
        return dist.get_rank()

    @property
    @override
    def size(self) -> int:
        return dist.get_world_size()

    @property
    def leaving(self) -> tuple[int, frozenset[int]]:
        """Return the ranks that will not be in the next world, for ``WorldOfParts``."""
        return self.this_rank().leaving

    def this_rank(self) -> Rank:
        """Return this rank's own object, which lasts from world to world."""
        return this_rank()

    @override
    def prepare(self) -> None:
        if self.this_rank().has_peers:
            prove_peers()
            _watch_steps()

    @override
    def enter(self) -> None:
        self.this_rank().enter()

    @override
    def run(self, function: Callable[..., Any], *, in_place: bool = False) -> Callable[..., Any]:
        @wraps(function)
        def elastic(state: Any, *args: Any, **kwargs: Any) -> Any:
            return self.this_rank().run(state, lambda: function(state, *args, **kwargs), in_place=in_place)

        return elastic

    @override
    def barrier(self) -> None:
        meet(self.this_rank().is_broken)  # dist.barrier() would take a GPU, where there is one.

    @override
    def agrees(self) -> bool:
        return self.this_rank().agrees()

    @override
    def maximum(self, numbers: Sequence[float]) -> list[float]:
        return maximum(numbers, self.this_rank().is_broken)

    @override
    def broadcast(self, tensors: Sequence[torch.Tensor]) -> None:
        broadcast(tensors, is_broken=self.this_rank().is_broken)
        self.settle()

    @property
    def alike(self) -> int:
        """Return how many ranks have the same state, for ``GivingWorld``."""
        return self.this_rank().alike

    def give(self, tensors: Sequence[torch.Tensor]) -> None:
        """Send the state to those that are new, for ``GivingWorld``."""
        givers, takers = self.alike, range(self.alike, self.size)
        tensors = [each.reshape(-1).view(torch.uint8) for each in tensors if each.numel()]
        mine = [each for each in takers if (each - givers) % givers == self.rank]
        giver = (self.rank - givers) % givers
        self.exchange(dict.fromkeys(mine, tensors), {giver: tensors} if self.rank in takers else {})

    def settle(self) -> None:
        """Wait until the GPU has run the collectives."""
        self.this_rank().settle()

    def add_up(self, tensor: torch.Tensor) -> None:
        """Overwrite a tensor in host memory with the sum over all ranks, for ``WorldOfParts``."""
        add_up(tensor, self.this_rank().is_broken)

    def exchange(self, out: Mapping[int, Sequence[torch.Tensor]], into: Mapping[int, Sequence[torch.Tensor]]) -> None:
        """Send and receive tensors in host memory, for ``WorldOfParts``."""
        exchange(out, into)

    def state_lost(self) -> None:
        """Report that parts of the state are in no rank, for ``WorldOfParts``."""
        self.this_rank().state_lost()

    @override
    def change(self) -> None:
        self.this_rank().change()

    def handler(self, value: object) -> None:
        """No kind of value is this engine's own."""


@cache
def _watch_steps() -> None:
    register_optimizer_step_post_hook(lambda *_: stepped())
    register_optimizer_step_post_hook(lambda optimizer, *_: ledger().counts.stepped(optimizer))


WORLD = TorchWorld()
