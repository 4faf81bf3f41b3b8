"""The side of the ranks: a connection to the hub, what is told over it, and a loop around the training."""

from __future__ import annotations

import copy
import json
import os
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any

from elastic_runtime.protocol.rank_link import Progress, RankLink

ADDRESS, NAME, TOKEN = "HUB_ADDRESS", "HUB_NAME", "HUB_TOKEN"
"""Environment variables: ``HOST:PORT`` of the hub, the rank's id, and what the hub knows its ranks by."""


class WorldBroken(Exception):
    """A rank was lost: go back to the last commit, and into the next world."""


class WorldChanges(Exception):
    """Ranks come or go: into the next world, from the very commit that was just made."""


class HubWorld:
    """Implements :class:`~elastic_runtime.world.World`, but for tensors."""

    rank = size = 0

    def __init__(self) -> None:
        self._stream: Any = None
        self.changes = False
        """Whether the hub has another world ready, as all ranks heard it with the last :meth:`gather`."""

    @property
    def connected(self) -> bool:
        return self.size > 0

    @property
    def name(self) -> str:
        return os.environ.get(NAME, "")

    def prepare(self) -> None:
        """Nothing needs to be put right."""

    def enter(self) -> None:
        if not self.connected:
            self.enter_next()

    def run(self, function: Callable[..., Any], *, in_place: bool = False) -> Callable[..., Any]:
        return lambda state: run(function, state)

    def enter_next(self) -> None:
        """Wait for the next world, and be in it; a rank that is left out ends here, with success."""
        if self._stream is None:
            host, _, port = os.environ[ADDRESS].rpartition(":")
            self._stream = socket.create_connection((host, int(port))).makefile("rw", encoding="utf-8")
            self._tell({"join": self.name, "token": os.environ[TOKEN]})
        answer = self._ask({"ready": True})
        self.rank, self.size, self.changes = answer["rank"], answer["size"], False
        if self.rank < 0:
            sys.exit(0)

    def gather(self, value: Any) -> list[Any]:
        """What each rank gives (JSON), in the order of ranks.

        Raises:
            WorldBroken: a rank is gone.
        """
        answer = self._ask({"gather": value})
        if "values" not in answer:
            raise WorldBroken
        self.changes = answer["changes"]
        values: list[Any] = answer["values"]
        return values

    def barrier(self) -> None:
        self.gather(None)

    def agrees(self) -> bool:
        return True

    def maximum(self, numbers: Sequence[float]) -> list[float]:
        return [max(column) for column in zip(*self.gather(list(numbers)), strict=True)]

    def broadcast(self, tensors: Sequence[Any]) -> None:
        raise NotImplementedError("ranks of this engine have no tensors")

    def settle(self) -> None:
        """Its collectives have ended when they return."""

    def change(self) -> None:
        raise WorldChanges

    def handler(self, value: object) -> None:
        """No kind of value is this engine's own."""

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        self._tell(message)
        line = self._stream.readline()
        if not line:
            raise ConnectionError("the hub has hung up")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _tell(self, message: dict[str, Any]) -> None:
        self._stream.write(json.dumps(message) + "\n")
        self._stream.flush()


WORLD = HubWorld()


class State:
    """Values (JSON) that go from one world to the next, as attributes; ``step`` counts commits' steps.

    Args:
        **values: at the start.
    """

    step: int

    def __init__(self, **values: Any) -> None:
        self._committed = {"step": 0, **values}
        self._link = RankLink.from_environment()
        self.restore()

    def commit(self) -> None:
        """Keep everything, and hear whether the world changes. Raises WorldChanges, WorldBroken."""
        self._committed = copy.deepcopy({name: getattr(self, name) for name in self._committed})
        if WORLD.rank == 0:
            self._link.send(Progress(self.step))
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Hear whether the world changes. Raises as :meth:`commit`."""
        WORLD.barrier()
        if WORLD.changes:
            WORLD.change()

    def restore(self) -> None:
        """Back to the last commit."""
        for name, value in copy.deepcopy(self._committed).items():
            setattr(self, name, value)

    def sync(self) -> None:
        """Take the commit of rank 0, which is one of the last world, if there was one."""
        self._committed = WORLD.gather(self._committed)[0]
        self.restore()


def run(train: Callable[[State], None], state: State) -> None:
    """Train to the end, through as many worlds as it takes."""
    while True:
        WORLD.enter_next()
        try:
            state.sync()
            train(state)
            return WORLD.barrier()  # Nobody leaves before all are done, or it would look like an early exit.
        except WorldBroken:
            state.restore()
        except WorldChanges:
            pass
