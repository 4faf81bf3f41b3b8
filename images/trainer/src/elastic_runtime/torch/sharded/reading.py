"""All ranks of a world read their parts of a durable checkpoint, which rank 0 chooses."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from elastic_runtime.checkpoint.checkpoints import Checkpoints, StoredCheckpoint
from elastic_runtime.errors import InvalidDocument
from elastic_runtime.printable import printable
from elastic_runtime.torch.sharded import exchange
from elastic_runtime.torch.sharded.boxes import Box
from elastic_runtime.torch.sharded.stored import read_tensors
from elastic_runtime.torch.sharded.trees import Outline, Targets, leaves_of
from elastic_runtime.world import World

_END = b""


class Reading:
    """Of one checkpoint after the other, until one can be read by all.

    Args:
        checkpoints: where.
        world: the present one.
        model: sharded over it.
        optimizer: of its parameters.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        world: World,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None,
    ) -> None:
        self._checkpoints, self._world = checkpoints, world
        self._model, self._optimizer = model, optimizer
        self.tries = 0
        """Checkpoints that were read, the last one whole."""

    def lead(self, stored: StoredCheckpoint) -> StoredCheckpoint:
        """On rank 0: have all read this one.

        Raises:
            InvalidDocument: a rank cannot.
        """
        exchange.broadcast(stored.name.encode(), 0)
        self._read(stored)
        return stored

    def end(self) -> None:
        """On rank 0: there is no other to be read."""
        exchange.broadcast(_END, 0)

    def follow(self) -> bool:
        """On all others, to the end. Returns whether the last one was read by all."""
        found = False
        while name := exchange.broadcast(b"", 0):
            try:
                self._read(name.decode("ascii"))
                found = True
            except InvalidDocument:
                found = False
        return found

    def _read(self, stored: StoredCheckpoint | str) -> None:
        self.tries += 1
        problem = ""
        try:
            found = self._checkpoints.stored(stored) if isinstance(stored, str) else stored
            read_tensors(found, self._world.rank / self._world.size, self._make)
        except InvalidDocument as error:
            problem = printable(error)
        for rank, each in enumerate(exchange.gather_values(problem)):
            if each:
                raise InvalidDocument(f"rank {rank} cannot read it: {each}")
        self._targets.take()

    def _make(self, outline: Outline) -> tuple[Sequence[Tensor], Sequence[Box]]:
        self._targets = Targets(self._model, self._optimizer, outline)
        tensors = self._targets.tensors
        return tensors, [leaf.box for leaf in leaves_of(tensors)]
