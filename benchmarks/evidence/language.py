"""A small language model over the bytes of Python's own documentation, and a step of it whose sums are exact.

A step has a fixed number of micro-batches. Which bytes are in each depends on the number of the step only. The gradient
of each micro-batch is computed on its own and rounded to a multiple of :data:`GRAIN`, so that sums of them, in double
precision, are the same to the last bit in whatever order and on however many ranks they are added. Needs torch only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Self

import torch
from torch import nn
from torch.nn import functional

GRAIN = 2.0**-36
WEIGHTS = "weights.pt"
"""File of a run's last weights."""
SEED = 0


@dataclass(frozen=True, slots=True)
class Lesson:
    """What is trained, and for how long: a script's ``--input``."""

    steps: int
    parts: int = 8
    """Micro-batches of a step, over all ranks."""
    snapshot_every: int = 100
    """Steps, of scripts that save snapshots."""
    width: int = 64
    depth: int = 2
    heads: int = 4
    context: int = 64
    """Bytes that are read to predict the next."""
    sequences: int = 6
    """Of a micro-batch."""
    wait: float = 0.0
    """Seconds that a step takes besides, without the processor."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """The inverse of :meth:`__str__`."""
        return cls(**json.loads(text))

    def __str__(self) -> str:
        return json.dumps(self.as_dict())

    def as_dict(self) -> dict[str, float]:
        """All fields."""
        return asdict(self)


class LanguageModel(nn.Module):
    """A transformer of the usual kind, without dropout."""

    def __init__(self, lesson: Lesson) -> None:
        super().__init__()
        width = lesson.width
        self.heads = lesson.heads
        self.bytes = nn.Embedding(256, width)
        self.places = nn.Parameter(torch.randn(lesson.context, width) * 0.02)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "before": nn.LayerNorm(width),
                    "attention": nn.Linear(width, 3 * width),
                    "mixed": nn.Linear(width, width),
                    "after": nn.LayerNorm(width),
                    "wide": nn.Linear(width, 4 * width),
                    "narrow": nn.Linear(4 * width, width),
                }
            )
            for _ in range(lesson.depth)
        )
        self.last = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Logits of the next byte at each place."""
        hidden = self.bytes(inputs) + self.places
        for block in self.blocks:
            assert isinstance(block, nn.ModuleDict)
            hidden = hidden + block["mixed"](self._attend(block["attention"](block["before"](hidden))))
            hidden = hidden + block["narrow"](functional.gelu(block["wide"](block["after"](hidden))))
        logits: torch.Tensor = self.head(self.last(hidden))
        return logits

    def _attend(self, mixed: torch.Tensor) -> torch.Tensor:
        batch, length, width = mixed.shape
        query, key, value = (
            each.view(batch, length, self.heads, -1).transpose(1, 2) for each in torch.split(mixed, width // 3, dim=2)
        )
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return seen.transpose(1, 2).reshape(batch, length, width // 3)


def prepare() -> None:
    """Have this process compute as all others do."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED)


def build(lesson: Lesson) -> tuple[LanguageModel, torch.optim.Optimizer]:
    """The same in every process that is prepared."""
    model = LanguageModel(lesson)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def read_text() -> torch.Tensor:
    """All that Python's ``help()`` can say about its language, as bytes."""
    return torch.frombuffer(bytearray("\n".join(topics[name] for name in sorted(topics)), "utf-8"), dtype=torch.uint8)


def summed(model: LanguageModel, text: torch.Tensor, lesson: Lesson, step: int, parts: Iterable[int]) -> torch.Tensor:
    """The exact sum over these micro-batches: of the gradients, one after the other, and of the loss as the last."""
    parameters = list(model.parameters())
    total = torch.zeros(sum(each.numel() for each in parameters) + 1, dtype=torch.float64)
    for part in parts:
        inputs, targets = _windows(text, lesson, step, part)
        loss = functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        gradients = [each.flatten() for each in torch.autograd.grad(loss, parameters)]
        total += torch.round(torch.cat([*gradients, loss.detach().reshape(1)]).double() / GRAIN)
    return total * GRAIN


def learn(model: LanguageModel, mean: torch.Tensor) -> float:
    """Give the parameters the mean over all micro-batches as gradients; returns the mean loss."""
    offset = 0
    for parameter in model.parameters():
        part = mean[offset : offset + parameter.numel()]
        parameter.grad = part.view_as(parameter).to(parameter.dtype)
        offset += parameter.numel()
    return float(mean[-1])


def share(lesson: Lesson, rank: int, size: int) -> range:
    """The micro-batches of a rank in a world of that size."""
    return range(rank, lesson.parts, size)


def save_weights(model: LanguageModel, path: Path) -> None:
    """All of them, one after the other."""
    torch.save(torch.cat([each.detach().flatten() for each in model.parameters()]), path)


@dataclass(frozen=True, slots=True)
class Weights:
    """What a run has ended with."""

    values: torch.Tensor

    @classmethod
    def read(cls, path: Path) -> Self:
        """As :func:`save_weights` wrote them."""
        return cls(torch.load(path, weights_only=True))

    @property
    def digest(self) -> str:
        """Equal if and only if all bits are."""
        return hashlib.sha256(self.values.numpy().tobytes()).hexdigest()

    def difference(self, other: Weights) -> float:
        """The largest of any weight."""
        return float((self.values - other.values).abs().max())


def _windows(text: torch.Tensor, lesson: Lesson, step: int, part: int) -> tuple[torch.Tensor, torch.Tensor]:
    chance = torch.Generator().manual_seed(SEED + step * lesson.parts + part)
    begins = torch.randint(len(text) - lesson.context - 1, (lesson.sequences, 1), generator=chance)
    windows = text[begins + torch.arange(lesson.context + 1)].long()
    return windows[:, :-1], windows[:, 1:]
