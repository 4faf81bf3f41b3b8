"""The same samples at every global step, whatever the size of the world."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.torch.batches.plan import BatchPlan, Indices, Share
from elastic_runtime.world import Place, current_world

_OURS = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "generator", "persistent_workers")


@dataclass(frozen=True, slots=True)
class Batch:
    """This rank's share of one global batch."""

    data: Any
    """What a ``DataLoader`` would give for the rank's samples: ``images, labels = batch.data``."""
    weight: float
    """Multiply the rank's mean loss with it before ``backward()``; then the average over ranks is the gradient of
    the mean loss over the global batch, also where shares differ in size. 0 where the rank has no sample of its own and
    ``data`` holds a placeholder."""
    step: int
    """Global step, from 1. ``state.step`` has the same value while the batch is worked on."""
    epoch: int
    """From 0."""
    ends_epoch: bool
    """Whether it is the last one of its epoch."""
    indices: Indices
    """Which samples of the dataset this rank trains on in this step; empty for a placeholder."""


class GlobalBatches:
    """Iterates over a training's batches, from where the state stands to the end of the last epoch.

    Step *s* covers the same samples at any world size, and the order is a function of seed and epoch alone. The
    position is an attribute of the state, set to the batch's step before the batch is handed out. So ``state.commit()``
    after the optimizer's step saves both together, ``restore()`` takes both back, a newcomer gets it by ``sync()``, and
    a durable checkpoint carries it. Iterate anew after a reset (as a function under ``hvd.elastic.run`` does by
    itself) and training continues with the next batch.

    Args:
        dataset: map-style: has ``__len__`` and ``__getitem__``. The same on every rank.
        size: samples of a global batch, over all ranks together.
        seed: 0 to 2**63 - 1.
        state: a ``DurableState``, or any elastic state that was made with ``step=0``.
        epochs: how often to go over the dataset.
        shuffle: a new order in each epoch; False: the dataset's order.
        drop_last: leave out an epoch's last batch where it is smaller than ``size``.
        position: name of the state's attribute that counts the steps.
        world: has this rank and the world's size; None: the engine's.
        **loader: further arguments of ``torch.utils.data.DataLoader``, such as ``num_workers``, ``collate_fn`` or
            ``pin_memory``. Without any, a ``TensorDataset`` is indexed directly, a whole share at a time.

    Raises:
        InvalidSettings: an argument cannot work.
    """

    def __init__(
        self,
        dataset: Any,
        size: int,
        seed: int,
        state: Any,
        *,
        epochs: int = 1,
        shuffle: bool = True,
        drop_last: bool = False,
        position: str = "step",
        world: Place | None = None,
        **loader: Any,
    ) -> None:
        if not hasattr(dataset, "__len__"):
            problem = f"{type(dataset).__name__} has no length"
            raise InvalidSettings("GlobalBatches.dataset", problem, "Give a map-style dataset")
        for name in _OURS:
            if name in loader:
                raise InvalidSettings(f"GlobalBatches.{name}", "GlobalBatches sets it itself", "Leave it out")
        self.plan = BatchPlan(len(dataset), size, seed, epochs=epochs, shuffle=shuffle, drop_last=drop_last)
        self._dataset = dataset
        self._state = state
        self._position = position
        self._world = world
        self._loader = loader
        _ = self.step  # an unsuitable state fails here rather than in the first epoch

    @property
    def step(self) -> int:
        """Batches handed out so far, over all epochs; 0 at the start."""
        step = getattr(self._state, self._position, None)
        if type(step) is not int or step < 0:
            problem = f"the state's attribute {self._position!r} is {step!r}, not a count of steps"
            raise InvalidSettings("GlobalBatches.state", problem, f"Make the state with {self._position}=0")
        return step

    def __len__(self) -> int:
        """Batches of the whole training, those handed out included."""
        return self.plan.steps

    def __iter__(self) -> Iterator[Batch]:
        """From the batch after :attr:`step`, for the world as it is now."""
        world = self._world or current_world()
        shares = _Shares(self.plan, self.step + 1, world.rank, world.size)
        fetched = _index_tensors(self._dataset, shares) if self._is_direct() else self._load(shares)
        with closing(fetched):
            for share, data in zip(shares.plans(), fetched, strict=True):
                setattr(self._state, self._position, share.step)
                yield Batch(data, share.weight, share.step, share.epoch, share.ends_epoch, share.indices)

    def _is_direct(self) -> bool:
        return not self._loader and getattr(type(self._dataset), "__getitem__", None) is TensorDataset.__getitem__

    def _load(self, shares: _Shares) -> Generator[Any, None, None]:
        # A generator of its own: a loader without one draws its base seed from torch's, and dropout would then depend
        # on how often training was resumed.
        generator = torch.Generator().manual_seed(self.plan.seed)
        loader = DataLoader(self._dataset, batch_sampler=shares, generator=generator, **self._loader)
        yield from loader


class _Shares:
    """One rank's shares from a step on, as a batch sampler."""

    def __init__(self, plan: BatchPlan, first: int, rank: int, ranks: int) -> None:
        self._plan = plan
        self._steps = range(first, plan.steps + 1)
        self._rank = rank
        self._ranks = ranks

    def plans(self) -> Iterator[Share]:
        return (self._plan.share(step, self._rank, self._ranks) for step in self._steps)

    def __iter__(self) -> Iterator[list[int]]:
        return (share.indices.tolist() or [share.placeholder] for share in self.plans())

    def __len__(self) -> int:
        return len(self._steps)


def _index_tensors(dataset: TensorDataset, shares: _Shares) -> Generator[list[torch.Tensor], None, None]:
    for indices in shares:
        chosen = torch.tensor(indices)
        yield [tensor.index_select(0, chosen.to(tensor.device)) for tensor in dataset.tensors]
