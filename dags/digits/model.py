"""A small convolutional network for 8 x 8 images, and the distortions it is trained with."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

CLASSES = 10


class DigitsNet(nn.Module):
    """Three convolutions and two dense layers, about 357,000 parameters.

    Normalised by groups, not by batch: the statistics of a batch would depend on how many ranks share it.
    """

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.GroupNorm(8, width),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.GroupNorm(8, 2 * width),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1),
            nn.GroupNorm(8, 2 * width),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classify = nn.Sequential(
            nn.Flatten(),
            nn.Linear(2 * width * 4, 4 * width),
            nn.ReLU(),
            nn.Linear(4 * width, CLASSES),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits, N x 10, of images N x 1 x 8 x 8."""
        logits: torch.Tensor = self.classify(self.features(images))
        return logits


def distort(images: torch.Tensor, indices: torch.Tensor, samples: int, seed: int) -> torch.Tensor:
    """Turn by up to 12 degrees, scale by up to a tenth and shift by up to one pixel, each image its own way.

    Which way depends on ``seed`` and on the image's index in the data set alone: neither on the other images of the
    batch nor on how many ranks share it, so that a run trains on the same pixels at any world size.

    Args:
        images: N x 1 x 8 x 8.
        indices: N, of the images in the data set.
        samples: size of the data set.
        seed: one for each global step.
    """
    random = torch.rand((samples, 4), generator=torch.Generator().manual_seed(seed))[indices] * 2 - 1
    angle = random[:, 0] * math.radians(12)
    scale = 1 + random[:, 1] * 0.1
    shift = random[:, 2:] * (2 / images.shape[-1])
    rotation = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], dim=1).view(-1, 2, 2)
    matrix = torch.cat([rotation * scale.view(-1, 1, 1), shift.unsqueeze(2)], dim=2)
    grid = functional.affine_grid(matrix, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, align_corners=False)
