"""Models of a given size, of which training is cheap: what is measured is their state, and not their arithmetic."""

from __future__ import annotations

import torch
from torch import Tensor, nn

TENSORS = 64
"""In the body, all of one size."""
FEATURES, CLASSES = 256, 10


class SizedModel(nn.Module):
    """A frozen body of so many bytes and a small head that is trained, as in fine-tuning.

    Args:
        megabytes: of the body, in 2**20 bytes.
    """

    def __init__(self, megabytes: int) -> None:
        super().__init__()
        values = (megabytes << 20) // 4 // TENSORS
        self.body = nn.ParameterList(nn.Parameter(torch.randn(values), requires_grad=False) for _ in range(TENSORS))
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        """Scores, of the head alone."""
        scores: Tensor = self.head(inputs)
        return scores


def batch() -> tuple[Tensor, Tensor]:
    """Always the same one."""
    made = torch.Generator().manual_seed(1)
    return torch.randn(128, FEATURES, generator=made), torch.randint(CLASSES, (128,), generator=made)
