"""Where a state stands among a training's batches, and which shares of them come next on this rank."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.protocol.rank_link import BatchSize, TotalSteps, shared_link
from elastic_runtime.training.batches.plan import BatchPlan, Indices, Share
from elastic_runtime.world import Place, current_world

T = TypeVar("T")
STEP = "step"
"""Attribute of a state that is the run's progress. If batches are counted by another one, they are not all of it."""


@dataclass(frozen=True, slots=True)
class Batch:
    """This rank's share of one global batch."""

    data: Any
    """The rank's samples, as a ``DataLoader`` or Keras has them: ``images, labels = batch.data``."""
    weight: float
    """Multiply the rank's mean loss with it before its gradient is taken; then the average over ranks is the gradient
    of the mean loss over the global batch, also where shares differ in size. 0 where the rank has no sample of its own
    and ``data`` holds a placeholder."""
    step: int
    """Global step, from 1. ``state.step`` has the same value while the batch is worked on."""
    epoch: int
    """From 0."""
    ends_epoch: bool
    """Whether it is the last one of its epoch."""
    indices: Indices
    """Which samples of the dataset this rank trains on in this step; empty for a placeholder."""


@dataclass(frozen=True, slots=True)
class Shares:
    """One rank's shares of some steps, each time from the first on."""

    plan: BatchPlan
    steps: range
    rank: int
    ranks: int

    def __iter__(self) -> Iterator[Share]:
        return (self.plan.share(step, self.rank, self.ranks) for step in self.steps)

    def __len__(self) -> int:
        return len(self.steps)


class BatchPosition:
    """Batches of a plan, counted by an attribute of a state; the base of each framework's ``GlobalBatches``.

    Args:
        samples: in the dataset.
        size: samples of a global batch, over all ranks together.
        seed: 0 to 2**63 - 1.
        state: an elastic state that was made with the attribute as 0.
        epochs: how often to go over the dataset.
        shuffle: a new order in each epoch.
        drop_last: leave out an epoch's last batch where it is smaller than ``size``.
        position: name of the attribute.
        world: has this rank and the world's size; None: the engine's.

    Raises:
        InvalidSettings: an argument cannot work.
    """

    counts_samples: ClassVar[bool] = True
    """Whether the plan's samples are those of the training, and not other units of work."""

    def __init__(
        self,
        samples: int,
        size: int,
        seed: int,
        state: Any,
        *,
        epochs: int,
        shuffle: bool,
        drop_last: bool,
        position: str,
        world: Place | None,
    ) -> None:
        self.plan = BatchPlan(samples, size, seed, epochs=epochs, shuffle=shuffle, drop_last=drop_last)
        self.state = state
        self.position = position
        self._world = world
        self._told: float | None = None
        _ = self.step  # an unsuitable state fails here rather than in the first epoch

    @property
    def world(self) -> Place:
        """In which the batches are shared out."""
        return self._world or current_world()

    @property
    def step(self) -> int:
        """Batches handed out so far, over all epochs; 0 at the start."""
        step = getattr(self.state, self.position, None)
        if type(step) is not int or step < 0:
            problem = f"the state's attribute {self.position!r} is {step!r}, not a count of steps"
            raise InvalidSettings(f"{type(self).__name__}.state", problem, f"Make the state with {self.position}=0")
        return step

    def move_to(self, step: int) -> None:
        """The position, from now on."""
        setattr(self.state, self.position, step)

    def __len__(self) -> int:
        """Batches of the whole training, those handed out included."""
        return self.plan.steps

    def shares(self, *, one_epoch: bool = False) -> Shares:
        """Return this rank's shares from the step after :attr:`step` on, for the world as it is now.

        Args:
            one_epoch: to the end of the epoch, instead of the training's.
        """
        world, first, end = self.world, self.step + 1, self.plan.steps
        self._tell_size(world)
        self._tell_state()
        if one_epoch:
            end = min(end, (1 + self.step // self.plan.steps_per_epoch) * self.plan.steps_per_epoch)
        return Shares(self.plan, range(first, end + 1), world.rank, world.size)

    def through_worlds(self, in_world: Callable[[Shares], Generator[T, None, None]]) -> Iterator[T]:
        """Yield a function's values for each step to the end of the training, also if a step ends in another world.

        Args:
            in_world: yields for these shares, in one world.
        """
        while True:
            shares = self.shares()
            with closing(in_world(shares)) as steps:
                for step in steps:
                    yield step
                    if (shares.rank, shares.ranks) != (self.world.rank, self.world.size):
                        break
                else:
                    return

    def _tell_state(self) -> None:
        """For the receipt of a state that keeps one."""
        if self.position == STEP and hasattr(self.state, "trains_on"):
            plan = self.plan
            unit = "samples" if self.counts_samples else "shards"
            self.state.trains_on(plan, unit)

    def _tell_size(self, world: Place) -> None:
        """For samples a second and time left in the run's status; again when another rank has become the first."""
        samples = self.plan.samples * self.plan.epochs / max(1, self.plan.steps)
        samples = min(samples, self.plan.size)  # Those that drop_last leaves out are not trained on.
        if world.rank == 0 and samples != self._told:
            self._told = samples
            if self.counts_samples:
                shared_link().send(BatchSize(samples))
            if self.position == STEP:
                shared_link().send(TotalSteps(self.plan.steps, by_script=False))
