"""scikit-learn's bundled handwritten digits (1,797 real images of 8 x 8 pixels) as a train and a test shard.

The images come from the UCI set "Optical Recognition of Handwritten Digits"
(https://archive.ics.uci.edu/dataset/80); nothing is downloaded.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

TRAIN = "train.npz"
TEST = "test.npz"
_LARGEST_PIXEL = 16.0


@dataclass(frozen=True, slots=True)
class Shard:
    """Images and what they show."""

    images: torch.Tensor
    """float32, N x 1 x 8 x 8, from 0 to 1."""
    labels: torch.Tensor
    """int64, N, from 0 to 9."""

    def __len__(self) -> int:
        return len(self.labels)


def write_shards(folder: Path, test_fraction: float, seed: int) -> dict[str, int]:
    """Write both shards under ``folder``; the same arguments write the same shards.

    Args:
        folder: made when missing.
        test_fraction: share of the images, drawn evenly from all ten digits, that training never sees.
        seed: of the draw.

    Returns:
        Number of images in each shard: ``{"train": …, "test": …}``.
    """
    # Here, not above: ranks only read, and a rank that joins keeps the others waiting while it imports.
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    train_images, test_images, train_labels, test_labels = train_test_split(
        digits.images, digits.target, test_size=test_fraction, random_state=seed, stratify=digits.target
    )
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / TRAIN, train_images, train_labels)
    _write(folder / TEST, test_images, test_labels)
    return {"train": len(train_labels), "test": len(test_labels)}


def read_shard(path: Path) -> Shard:
    """Read what :func:`write_shards` wrote."""
    with np.load(path, allow_pickle=False) as arrays:
        return Shard(
            images=torch.from_numpy(arrays["images"]).unsqueeze(1) / _LARGEST_PIXEL,
            labels=torch.from_numpy(arrays["labels"]),
        )


def _write(path: Path, images: NDArray[np.float64], labels: NDArray[np.int64]) -> None:
    """IntOrTemplate or not at all: a task that is tried again must not meet half a shard."""
    # Not by tempfile, whose files are their owner's alone: workers elsewhere may be somebody else.
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as stream:
            np.savez_compressed(stream, images=images.astype(np.float32), labels=labels.astype(np.int64))
        os.replace(temporary, path)
    except BaseException:  # raised again: nothing half-made stays, whatever ended this
        temporary.unlink(missing_ok=True)
        raise
