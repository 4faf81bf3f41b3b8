"""The world of a rank, by the collectives of torch.distributed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache, wraps
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from elastic_runtime.engines.torch.messages import NAME
from elastic_runtime.engines.torch.peers import prove_peers
from elastic_runtime.engines.torch.rank import Rank, this_rank
from elastic_runtime.engines.torch.sending import broadcast, exchange, maximum
from elastic_runtime.script.unjoined import stepped


class TorchWorld:
    """Implements :class:`~elastic_runtime.world.World`."""

    @property
    def connected(self) -> bool:
        """See :class:`World`."""
        return dist.is_initialized()

    @property
    def name(self) -> str:
        """See :class:`World`."""
        return os.environ.get(NAME, "")

    @property
    def rank(self) -> int:
        """See :class:`World`."""
        return dist.get_rank()

    @property
    def size(self) -> int:
        """See :class:`World`."""
        return dist.get_world_size()

    @property
    def leaving(self) -> tuple[int, frozenset[int]]:
        """See :class:`~elastic_runtime.torch.sharded_state.WorldOfParts`."""
        return self.this_rank().leaving

    def this_rank(self) -> Rank:
        """What goes from world to world."""
        return this_rank()

    def prepare(self) -> None:
        """See :class:`World`."""
        if self.this_rank().has_peers:
            prove_peers()
            _watch_steps()

    def enter(self) -> None:
        """See :class:`World`."""
        self.this_rank().enter()

    def run(self, function: Callable[..., Any], *, in_place: bool = False) -> Callable[..., Any]:
        """See :class:`World`."""

        @wraps(function)
        def elastic(state: Any, *args: Any, **kwargs: Any) -> Any:
            return self.this_rank().run(state, lambda: function(state, *args, **kwargs), in_place=in_place)

        return elastic

    def barrier(self) -> None:
        """See :class:`World`."""
        self.maximum([0.0])  # dist.barrier() would take a GPU, where there is one.

    def agrees(self) -> bool:
        """See :class:`World`."""
        return self.this_rank().agrees()

    def maximum(self, numbers: Sequence[float]) -> list[float]:
        """See :class:`World`."""
        return maximum(numbers, self.this_rank().is_broken)

    def broadcast(self, tensors: Sequence[torch.Tensor]) -> None:
        """See :class:`World`."""
        broadcast(tensors, is_broken=self.this_rank().is_broken)
        self.settle()

    def settle(self) -> None:
        """See :class:`World`."""
        self.this_rank().settle()

    def exchange(self, out: Mapping[int, Sequence[torch.Tensor]], into: Mapping[int, Sequence[torch.Tensor]]) -> None:
        """See :class:`~elastic_runtime.torch.sharded_state.WorldOfParts`."""
        exchange(out, into)

    def state_lost(self) -> None:
        """See :class:`~elastic_runtime.torch.sharded_state.WorldOfParts`."""
        self.this_rank().state_lost()

    def change(self) -> None:
        """See :class:`World`."""
        self.this_rank().change()

    def handler(self, value: object) -> None:
        """No kind of value is this engine's own."""


@cache
def _watch_steps() -> None:
    register_optimizer_step_post_hook(lambda *_: stepped())


WORLD = TorchWorld()
