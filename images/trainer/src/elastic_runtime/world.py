"""Interface of a rank's world for helpers, for any engine.

An agent names the world's object in the environment of its ranks; a script that somebody starts by hand has Horovod's.
"""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Protocol

WORLD = "ELASTIC_RUNTIME_WORLD"
"""Environment variable: ``module:object`` of the :class:`World` of a rank."""
_BY_HAND = "elastic_runtime.engines.horovod.world:WORLD"


class Place(Protocol):
    """Rank and world size of a process."""

    @property
    def rank(self) -> int:
        """Number of this rank, from 0."""

    @property
    def size(self) -> int:
        """World size: number of ranks."""


class Handler(Protocol):
    """How one value of a state is kept: an engine's own kind, or one of a script."""

    value: Any

    def save(self) -> None:
        """Copy the value, so that :meth:`restore` can return to it."""

    def restore(self) -> None:
        """Return the value to the last :meth:`save`."""

    def sync(self) -> None:
        """Take rank 0's value over on every rank; a collective."""

    def set_value(self, value: Any) -> None:
        """Replace the object that is saved and restored."""


class World(Place, Protocol):
    """The world that this process is in, from one to the next; one object a process.

    Collectives are called by all ranks of the world, in the same order.
    """

    @property
    def connected(self) -> bool:
        """Whether there is a world now; without one, neither rank nor size."""

    @property
    def name(self) -> str:
        """Name of this rank, as the launcher knows it. Empty without a launcher."""

    def prepare(self) -> None:
        """Called in a rank before the user's script: have done what the engine needs. The second time nothing.

        Raises:
            SystemExit: this cannot work.
        """

    def enter(self) -> None:
        """Be in a world: in the present one, or wait for the first. Where there will be none, the process ends."""

    def run(self, function: Callable[..., Any], *, in_place: bool = False) -> Callable[..., Any]:
        """The training function, made to go through one world after another; its first argument is the state.

        Args:
            function: it.
            in_place: the engine may have :meth:`change` return in the next world, instead of calling it anew there.
        """

    def barrier(self) -> None:
        """Wait until all ranks are here, of which one may write a long last checkpoint; a collective."""

    def agrees(self) -> bool:
        """Whether all ranks tell each other what they have heard at the commit that begins with this call.

        The same on all of them: always, or at commits that the engine has settled upon, soon after a notice has come or
        another world is wanted, and at the first of each world.
        """

    def maximum(self, numbers: Sequence[float]) -> list[float]:
        """Return the maximum of each number over all ranks. A collective."""

    def broadcast(self, tensors: Sequence[Any]) -> None:
        """Overwrite these contiguous tensors with rank 0's, of the same shapes and types; a collective.

        They are torch's, or numpy's arrays where the script uses TensorFlow.
        """

    def settle(self) -> None:
        """Wait for collectives that have returned and may still run, as on a GPU: a commit copies their results.

        Raises:
            Exception: the engine's, if a rank is lost. Their results are not valid then.
        """

    def change(self) -> None:
        """A state calls it on all ranks at once, at a commit, for the engine to end this world and make the next.

        Returns, where the training function may stay where it is, in the next world, with the state in sync.

        Raises:
            BaseException: the engine's interrupt, which leaves the training function.
        """

    def handler(self, value: object) -> Handler | None:
        """One that the script has registered with the engine for this kind of value, or the engine's for its own."""


@cache
def current_world() -> World:
    """Return the world of this process. Imports the engine's side of a rank."""
    world: World = pkgutil.resolve_name(os.environ.get(WORLD, _BY_HAND))
    return world
