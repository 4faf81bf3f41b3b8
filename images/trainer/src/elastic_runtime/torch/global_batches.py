"""The same samples at every global step, whatever the size of the world."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.training.batches.plan import Share
from elastic_runtime.training.batches.position import Batch, BatchPosition, Shares
from elastic_runtime.world import Place

_OURS = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "generator", "persistent_workers")


class LoadedBatches(BatchPosition):
    """Base of :class:`GlobalBatches`, which documents the arguments, and of classes that cut batches otherwise."""

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
        super().__init__(
            len(dataset), size, seed, state,
            epochs=epochs, shuffle=shuffle, drop_last=drop_last, position=position, world=world,
        )  # fmt: skip
        self._dataset = dataset
        self._loader = loader

    def fetch(
        self, whole: Shares, parts: Iterable[Share] | None = None, stand_in: int = 1
    ) -> Generator[Any, None, None]:
        """Their data, one after the other.

        Args:
            whole: shares of this rank.
            parts: what they are cut into; None: they stay whole.
            stand_in: how many samples, all the same one, a share without any has.
        """
        samples = _Samples(whole if parts is None else parts, stand_in)
        return _index_tensors(self._dataset, samples) if self._is_direct() else self._load(samples, whole)

    def _is_direct(self) -> bool:
        return not self._loader and getattr(type(self._dataset), "__getitem__", None) is TensorDataset.__getitem__

    def _load(self, samples: _Samples, whole: Shares) -> Generator[Any, None, None]:
        # A generator of its own: a loader without one draws its base seed from torch's, and dropout would then depend
        # on how often training was resumed.
        generator = torch.Generator().manual_seed(_seed_of(whole))
        loader = DataLoader(self._dataset, batch_sampler=samples, generator=generator, **self._loader)
        yield from loader


class GlobalBatches(LoadedBatches):
    """Iterate over a training's batches, from the state's position to the end of the last epoch.

    Step *s* has the same samples at any world size, and the order depends only on seed and epoch. The position is an
    attribute of the state, set to the batch's step before the batch is returned. So ``state.commit()`` after the
    optimizer's step saves both together, ``restore()`` restores both, ``sync()`` gives it to new ranks, and durable
    checkpoints contain it. Iterate again after a reset, as a function under ``hvd.elastic.run`` does, and training
    continues with the next batch.

    Args:
        dataset: Map-style dataset, with ``__len__`` and ``__getitem__``. The same on every rank.
        size: Samples of a global batch, over all ranks together.
        seed: 0 to 2**63 - 1.
        state: A ``DurableState``, or any elastic state with ``step=0``.
        epochs: Number of passes over the dataset.
        shuffle: Use a new order in each epoch. False: the dataset's order.
        drop_last: Leave out an epoch's last batch if it is smaller than ``size``.
        position: Name of the state's attribute that counts the steps.
        world: World with this rank and its size. None: the engine's.
        **loader: Further arguments of ``torch.utils.data.DataLoader``, such as ``num_workers``, ``collate_fn`` or
            ``pin_memory``. Without any, a ``TensorDataset`` is indexed directly, a whole share at a time.

    Raises:
        InvalidSettings: an argument is invalid.
    """

    def __iter__(self) -> Iterator[Batch]:
        """From the batch after :attr:`step`, in whichever world."""
        return self.through_worlds(self._in_world)

    def _in_world(self, shares: Shares) -> Generator[Batch, None, None]:
        with closing(self.fetch(shares)) as fetched:
            for share, data in zip(shares, fetched, strict=True):
                self.move_to(share.step)
                yield Batch(data, share.weight, share.step, share.epoch, share.ends_epoch, share.indices)


def _seed_of(shares: Shares) -> int:
    """Return the seed of a loader's workers, another one on each rank and from each step on.

    With one for all, the n-th sample of each rank would be augmented by the same random numbers, and each resumption
    would draw those of the first steps again.
    """
    drawn = f"{shares.plan.seed} {shares.steps.start} {shares.rank}"
    return int.from_bytes(hashlib.sha256(drawn.encode()).digest()[:8], "big") >> 1


class _Samples:
    """Indices of shares, as a batch sampler."""

    def __init__(self, shares: Iterable[Share], stand_in: int) -> None:
        self._shares, self._stand_in = shares, stand_in

    def __iter__(self) -> Iterator[list[int]]:
        return (share.indices.tolist() or [share.placeholder] * self._stand_in for share in self._shares)


def _index_tensors(dataset: TensorDataset, samples: _Samples) -> Generator[list[torch.Tensor], None, None]:
    for indices in samples:
        chosen = torch.tensor(indices)
        yield [tensor.index_select(0, chosen.to(tensor.device)) for tensor in dataset.tensors]
