"""How fast a world of so many workers trains."""

from __future__ import annotations

import math
from dataclasses import dataclass

from elastic_runtime.errors import InvalidSettings


@dataclass(frozen=True, slots=True)
class Scaling:
    """Throughput is linear in the world size, times an efficiency for each doubling.

    ``rate(n) = n * efficiency ** log2(n)``: with 0.95, 16 workers do the work of 13 single ones. Ring all-reduce sends
    ``2 (n - 1) / n`` times the gradients whatever n is (Patarasuk and Yuan, 2009), hence linear by default.
    """

    efficiency: float = 1.0
    """Of a doubling, above 0.5, so that more workers are never slower, to 1."""

    def __post_init__(self) -> None:
        if not 0.5 < self.efficiency <= 1:
            problem = f"{self.efficiency} is not an efficiency of a doubling"
            raise InvalidSettings("efficiency", problem, "Write a number above 0.5, to 1")

    def rate(self, workers: int) -> float:
        """In units of a worker that trains alone."""
        return float(workers and workers * self.efficiency ** math.log2(workers))
