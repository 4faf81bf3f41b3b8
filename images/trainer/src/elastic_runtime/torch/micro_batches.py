"""The same micro-batches at every global step, whatever the size of the world: gradients are accumulated."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.torch.global_batches import LoadedBatches
from elastic_runtime.training.batches.plan import Share, idle
from elastic_runtime.training.batches.position import Batch, Shares
from elastic_runtime.world import Place


class MicroStep:
    """This rank's micro-batches of one global step: iterate over it once.

    At least one on every rank, so that each takes part in the step's collectives.
    """

    def __init__(self, shares: list[Share], fetched: Iterator[Any]) -> None:
        self.step = shares[0].step
        """Global step, from 1. ``state.step`` has the same value while it is worked on."""
        self.epoch = shares[0].epoch
        """From 0."""
        self.ends_epoch = shares[0].ends_epoch
        """Whether it is the last one of its epoch."""
        self._shares, self._fetched = shares, fetched

    def __len__(self) -> int:
        """Micro-batches on this rank, a placeholder included."""
        return len(self._shares)

    def __iter__(self) -> Iterator[Batch]:
        while self._shares:
            share = self._shares.pop(0)
            yield Batch(next(self._fetched), share.weight, share.step, share.epoch, share.ends_epoch, share.indices)

    def skip(self) -> None:
        """Skip the rest of this step: the next step's micro-batches follow."""
        for _ in self:
            pass


class MicroBatches(LoadedBatches):
    """Iterate over a training's steps, each of ``count`` micro-batches over all ranks together.

    It works as :class:`~elastic_runtime.torch.GlobalBatches`, but a rank's share is a number of whole micro-batches,
    which have the same samples at any world size. So layers and losses that see a micro-batch as a whole, such as
    BatchNorm or a contrastive loss, compute the same, and a rank needs no more memory if there are fewer ranks.

    ::

        for step in MicroBatches(dataset, size=32, count=8, seed=0, state=state, optimizer=optimizer):
            optimizer.zero_grad()
            for batch in step:
                (loss_of(*batch.data) * batch.weight).backward()
            optimizer.step()
            state.commit()

    If the world's size divides ``count``, all ranks have the same number of micro-batches. Otherwise some have one
    more, and the others wait: :attr:`idle` is that part of the ranks' time. In a world larger than ``count``, a rank
    without a micro-batch gets a placeholder of two samples with the weight 0. The update is always that of the mean
    loss over all samples of the step.

    Args:
        dataset: As for GlobalBatches, like all parameters that are not described here.
        size: Samples of a micro-batch. The last one of an epoch may have fewer.
        count: Micro-batches of a step.
        seed: 0 to 2**63 - 1.
        state: As for GlobalBatches.
        optimizer: ``hvd.DistributedOptimizer``. Before each step, it gets the number of backward passes after which to
            exchange gradients. None: the script sets that itself.
        world: World with this rank and its size. None: the engine's.
        **options: As for GlobalBatches.

    Raises:
        InvalidSettings: an argument is invalid.
    """

    def __init__(
        self,
        dataset: Any,
        size: int,
        count: int,
        seed: int,
        state: Any,
        *,
        optimizer: Any = None,
        world: Place | None = None,
        **options: Any,
    ) -> None:
        for name, value in (("size", size), ("count", count)):
            if type(value) is not int or value < 1:
                problem = f"{value!r} is not a whole number of 1 or more"
                raise InvalidSettings(f"MicroBatches.{name}", problem, "Give 1 or more")
        if optimizer is not None and not hasattr(optimizer, "set_backward_passes_per_step"):
            problem = f"a {type(optimizer).__name__} has no setting for the number of backward passes of a step"
            raise InvalidSettings("MicroBatches.optimizer", problem, "Give what hvd.DistributedOptimizer returns")
        super().__init__(dataset, size * count, seed, state, world=world, **options)
        self._size, self._count, self._optimizer = size, count, optimizer

    @property
    def idle(self) -> float:
        """Part of the ranks' time, 0 to 1, for which they wait in this world because it does not divide ``count``."""
        return idle(self._count, self.world.size)

    def __iter__(self) -> Iterator[MicroStep]:
        """From the step after :attr:`step`, in whichever world."""
        return self.through_worlds(self._in_world)

    def _in_world(self, whole: Shares) -> Generator[MicroStep, None, None]:
        def cut(step: int) -> list[Share]:
            return self.plan.micro_shares(step, whole.rank, whole.ranks, self._size)

        parts = (share for step in whole.steps for share in cut(step))
        with closing(self.fetch(whole, parts, stand_in=2)) as fetched:
            for number in whole.steps:
                step = MicroStep(cut(number), fetched)
                if self._optimizer is not None:  # Also after a step that was broken off: it begins to count anew.
                    self._optimizer.set_backward_passes_per_step(len(step))
                self.move_to(number)
                yield step
                step.skip()
