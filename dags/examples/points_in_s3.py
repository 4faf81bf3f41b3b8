"""Points of a square and which of them lie in a circle: makes, learns and judges them, with S3 alone in between.

``prepare DATA`` writes the points there; ``train DATA`` is one rank of an elastic training with torch.distributed;
``evaluate DATA CHECKPOINT ACCURACY`` fails when the model is less often right. DATA is ``s3://BUCKET/KEY``. boto3 finds
credentials, and a server that is not Amazon's, in the environment.
"""

from __future__ import annotations

import io
import sys
from typing import Any
from urllib.parse import urlsplit

import boto3
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from elastic_runtime.torch import DurableState, GlobalBatches, elastic, load_checkpoint, report


def model() -> nn.Module:
    """Not trained yet."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))


def prepare(data: str) -> None:
    """Make them up."""
    points = torch.rand(4000, 2, generator=torch.Generator().manual_seed(1)) * 2 - 1
    content = io.BytesIO()
    torch.save((points, (points.norm(dim=1) < 0.8).float()), content)
    content.seek(0)
    boto3.client("s3").upload_fileobj(content, *place(data))
    print(f"{len(points)} points are in {data}")


def train(data: str) -> None:
    """One rank, from its start to its end: half of the points, ten times."""
    points, inside = (each[::2] for each in read(data))
    network = model()
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.05)
    state = DurableState(model=network, optimizer=optimizer)
    batches = GlobalBatches(TensorDataset(points, inside), size=100, seed=0, state=state, epochs=10)

    @elastic.run(in_place=True)
    def run(state: DurableState) -> None:
        parallel = DistributedDataParallel(network)
        for batch in batches:
            inputs, labels = batch.data
            optimizer.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(parallel(inputs).squeeze(1), labels)
            torch.autograd.backward(loss * batch.weight)
            optimizer.step()
            report(batch.step, loss=loss.detach())
            state.commit()

    run(state)


def evaluate(data: str, checkpoint: str, least: str) -> None:
    """By the other half. Raises SystemExit when it is not good enough."""
    points, inside = (each[1::2] for each in read(data))
    network = model()
    network.load_state_dict(load_checkpoint(checkpoint)["model"])
    with torch.no_grad():
        accuracy = ((network(points).squeeze(1) > 0) == inside.bool()).float().mean().item()
    print(f"accuracy {accuracy:.4f}")
    if accuracy < float(least):
        raise SystemExit(f"{accuracy:.4f} is less than {least}")


def read(data: str) -> tuple[Tensor, Tensor]:
    """The points, and which of them are inside."""
    content = io.BytesIO()
    boto3.client("s3").download_fileobj(*place(data), content)
    content.seek(0)
    found: Any = torch.load(content, weights_only=True)
    points, inside = found
    return points, inside


def place(data: str) -> tuple[str, str]:
    """Bucket and key."""
    parts = urlsplit(data)
    return parts.netloc, parts.path.lstrip("/")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["prepare", data]:
            prepare(data)
        case ["train", data]:
            train(data)
        case ["evaluate", data, checkpoint, least]:
            evaluate(data, checkpoint, least)
        case words:
            raise SystemExit(f"{words} are not prepare DATA, train DATA, or evaluate DATA CHECKPOINT ACCURACY")
