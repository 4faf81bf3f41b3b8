"""How well a trained network reads digits that it has never seen."""

from __future__ import annotations

from pathlib import Path

import torch

from digits.model import DigitsNet
from digits.shards import TEST, read_shard
from elastic_runtime.torch import load_checkpoint


class NotGoodEnough(ValueError):
    """The accuracy is under the wanted one."""


def evaluate_checkpoint(uri: str, shards: Path, min_accuracy: float) -> dict[str, float]:
    """Load the network of a durable checkpoint and try it on the test shard.

    Args:
        uri: of the checkpoint, from the result document of the training.
        shards: folder with the test shard.
        min_accuracy: least share of images read rightly.

    Returns:
        ``accuracy`` from 0 to 1, ``correct`` and ``images`` as counts, ``step`` of the checkpoint.

    Raises:
        NotGoodEnough: the accuracy is less than ``min_accuracy``.
    """
    checkpoint = load_checkpoint(uri)
    model = DigitsNet()
    model.load_state_dict(checkpoint["model"])
    shard = read_shard(shards / TEST)
    with torch.inference_mode():
        correct = int((model(shard.images).argmax(dim=1) == shard.labels).sum())
    accuracy = correct / len(shard)
    if accuracy < min_accuracy:
        raise NotGoodEnough(f"accuracy {accuracy:.4f} on {len(shard)} test images is less than {min_accuracy}")
    return {"accuracy": accuracy, "correct": correct, "images": len(shard), "step": checkpoint["step"]}
