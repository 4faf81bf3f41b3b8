"""Which samples the ranks train on at each global step: pure functions of the step, the seed and the world.

Steps are counted from 1. Step *s* covers the same samples at any world size; only who trains on which of them differs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from elastic_runtime.errors import InvalidSettings

Indices = NDArray[np.int64]
_MAX_SEED = 2**63 - 1


@lru_cache(maxsize=2)  # a prefetching loader works in this epoch and in the next
def epoch_order(samples: int, seed: int, epoch: int, shuffle: bool = True) -> Indices:
    """Order of the samples in one epoch.

    The samples are sorted by the raw 64-bit output of numpy's Philox generator keyed with seed and epoch. That stream
    never changes between numpy's releases (NEP 19), unlike ``permutation`` there or ``randperm`` in torch: a checkpoint
    continues in the same order under another release.

    Args:
        samples: in the dataset.
        seed: 0 to 2**63 - 1.
        epoch: from 0.
        shuffle: False: in the order of the dataset.
    """
    if not shuffle:
        order = np.arange(samples, dtype=np.int64)
    else:
        keys = np.random.Philox(key=seed | epoch << 64).random_raw(samples)
        order = np.argsort(keys, kind="stable").astype(np.int64, copy=False)
    order.flags.writeable = False
    return order


def share(count: int, rank: int, ranks: int) -> slice:
    """Positions in a global batch of ``count`` samples that fall to ``rank``: contiguous, sizes differ by at most 1."""
    return slice(count * rank // ranks, count * (rank + 1) // ranks)


def weight(own: int, count: int, ranks: int) -> float:
    """Return the factor of a rank's mean loss that makes the average over ranks the mean over the global batch.

    The mean over the global batch is the sum over ranks of ``own / count`` times the rank's mean; averaging divides by
    ``ranks``, hence ``ranks * own / count``. It is exactly 1 for equal shares and 0 without samples.

    Args:
        own: samples of this rank.
        count: samples of the global batch.
        ranks: world size.
    """
    return ranks * own / count


def idle(count: int, ranks: int) -> float:
    """Part of the ranks' time, 0 to 1, for which they wait where ``count`` equal parts of a step stay whole."""
    return 1.0 - count / (ranks * -(-count // ranks))


@dataclass(frozen=True, slots=True)
class Share:
    """Share of one rank in one global step."""

    step: int
    """Global step, from 1."""
    epoch: int
    """From 0."""
    ends_epoch: bool
    """Whether it is the last step of its epoch."""
    indices: Indices
    """Samples that this rank trains on; empty when there are fewer samples than ranks."""
    placeholder: int
    """A sample of the same global batch, to stand in where ``indices`` is empty."""
    weight: float
    """Factor for the loss of this rank, from :func:`weight`."""


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The batches of a training.

    Raises:
        InvalidSettings: a number is out of its range, or ``drop_last`` leaves nothing.
    """

    samples: int
    """In the dataset, at least 1."""
    size: int
    """Samples of a global batch, at least 1."""
    seed: int
    """0 to 2**63 - 1."""
    epochs: int = 1
    """How often each sample is trained on."""
    shuffle: bool = True
    drop_last: bool = False
    """Leave out an epoch's last batch where it is smaller than ``size``."""
    piece: int = 1
    """Samples that are on one rank together, at least 1."""

    def __post_init__(self) -> None:
        for name, least in (("samples", 1), ("size", 1), ("seed", 0), ("epochs", 1)):
            value = getattr(self, name)
            if value < least:
                raise InvalidSettings(f"GlobalBatches.{name}", f"{value} is less than {least}", f"Give {least} or more")
        if self.seed > _MAX_SEED:
            raise InvalidSettings("GlobalBatches.seed", f"{self.seed} is too large", f"Give at most {_MAX_SEED}")
        if self.steps_per_epoch == 0:
            problem = f"{self.size} is more than the {self.samples} samples, and drop_last drops the only batch"
            raise InvalidSettings("GlobalBatches.size", problem, "Give a smaller one, or drop_last=False")

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in one epoch."""
        return self.samples // self.size if self.drop_last else -(-self.samples // self.size)

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole training."""
        return self.epochs * self.steps_per_epoch

    def share(self, step: int, rank: int, ranks: int) -> Share:
        """Return the share of ``rank`` of ``ranks`` at global step ``step`` (from 1)."""
        batch, piece = self.batch(step), self.piece
        own = share(-(-len(batch) // piece), rank, ranks)
        return self._share(step, batch[own.start * piece : own.stop * piece], batch, ranks)

    def micro_shares(self, step: int, rank: int, ranks: int, size: int) -> list[Share]:
        """The same, where the batch is cut into parts of ``size`` samples which stay whole, whatever the world.

        At least one: where there are fewer parts than ranks, an empty one stands in.
        """
        batch = self.batch(step)
        parts = [batch[begin : begin + size] for begin in range(0, len(batch), size)]
        own = parts[share(len(parts), rank, ranks)] or [batch[:0]]
        return [self._share(step, part, batch, ranks) for part in own]

    def batch(self, step: int) -> Indices:
        """Return the samples of global step ``step``, from 1, over all ranks."""
        epoch, position = divmod(step - 1, self.steps_per_epoch)
        order = epoch_order(self.samples, self.seed, epoch, self.shuffle)
        return order[position * self.size : (position + 1) * self.size]

    def _share(self, step: int, own: Indices, batch: Indices, ranks: int) -> Share:
        epoch, position = divmod(step - 1, self.steps_per_epoch)
        return Share(
            step=step,
            epoch=epoch,
            ends_epoch=position == self.steps_per_epoch - 1,
            indices=own,
            placeholder=int(batch[0]),
            weight=weight(len(own), len(batch), ranks),
        )
