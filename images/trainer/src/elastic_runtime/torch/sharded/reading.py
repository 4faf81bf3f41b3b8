"""All ranks of a world read their parts of a durable checkpoint, which rank 0 chooses."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from elastic_runtime.checkpoint.checkpoints import Checkpoints, StoredCheckpoint
from elastic_runtime.errors import DamagedCheckpoint, InvalidDocument, InvalidSettings
from elastic_runtime.printable import printable
from elastic_runtime.torch.sharded import exchange
from elastic_runtime.torch.sharded.boxes import Box
from elastic_runtime.torch.sharded.stored import read_tensors
from elastic_runtime.torch.sharded.trees import Outline, Targets, leaves_of
from elastic_runtime.world import World

_END = b""
_REFUSED = b"!"
"""Begins the last word of rank 0 where the run cannot go on; no name of a checkpoint begins so."""


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
        self._has_taken = False
        """Whether the optimizer was given something, which may have been passed over later."""
        self.tries = 0
        """Checkpoints that were read, the last one whole."""

    def lead(self, stored: StoredCheckpoint) -> StoredCheckpoint:
        """On rank 0: have all read this one.

        Raises:
            InvalidDocument: a rank cannot.
            InvalidSettings: it does not fit what a rank has built.
        """
        exchange.broadcast(stored.name.encode(), 0)
        self._read(stored)
        return stored

    def end(self, refusal: InvalidSettings | None = None) -> None:
        """On rank 0: there is no other to be read.

        Args:
            refusal: why the run cannot go on, which is then raised on all other ranks.
        """
        words = refusal and [refusal.field, refusal.problem, refusal.remedy]
        exchange.broadcast(_REFUSED + json.dumps(words).encode() if words else _END, 0)

    def follow(self) -> bool:
        """On all others, to the end. Returns whether the last one was read by all.

        Raises:
            InvalidSettings: rank 0 says that the run cannot go on.
        """
        found = False
        while name := exchange.broadcast(b"", 0):
            if name.startswith(_REFUSED):
                raise InvalidSettings(*json.loads(name.removeprefix(_REFUSED)))
            try:
                self._read(name.decode("ascii"))
                found = True
            except (InvalidDocument, InvalidSettings):
                found = False
        return found

    def _read(self, stored: StoredCheckpoint | str) -> None:
        self.tries += 1
        self._together(lambda: self._fill(stored))
        self._has_taken = True
        self._together(self._targets.take)

    def _together(self, act: Callable[[], None]) -> None:
        """On all ranks: what a rank cannot do, none has done."""
        problem: str | list[str] = ""
        kind = InvalidDocument
        try:
            act()
        except InvalidDocument as error:
            problem = printable(error)
            if isinstance(error, DamagedCheckpoint):
                kind = DamagedCheckpoint
        except InvalidSettings as error:
            problem = [error.field, error.problem, error.remedy]
        found = exchange.gather_values(problem)
        for rank, each in enumerate(found):
            if isinstance(each, str) and each:
                raise kind(f"rank {rank} cannot read it: {each}")
        for each in found:
            if each:
                raise InvalidSettings(*each)

    def _fill(self, stored: StoredCheckpoint | str) -> None:
        found = self._checkpoints.stored(stored) if isinstance(stored, str) else stored
        read_tensors(found, self._world.rank / self._world.size, self._make)

    def _make(self, outline: Outline) -> tuple[Sequence[Tensor], Sequence[Box]]:
        self._targets = Targets(self._model, self._optimizer, outline, demands_optimizer=self._has_taken)
        tensors = self._targets.tensors
        return tensors, [leaf.box for leaf in leaves_of(tensors)]
