"""The world of a rank that is alone, for scripts of tests that have it as their ``ELASTIC_RUNTIME_WORLD``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from elastic_runtime.world import Handler


class SingleRank:
    """Implements World."""

    connected, name, rank, size = True, "rank-0", 0, 1

    def prepare(self) -> None:
        """There is nothing to prepare."""

    enter = barrier = settle = prepare

    def run(self, function: Callable[..., Any], *, in_place: bool = False) -> Callable[..., Any]:
        return function

    def agrees(self) -> bool:
        return True

    def maximum(self, numbers: Sequence[float]) -> list[float]:
        return list(numbers)

    def broadcast(self, tensors: Sequence[Any]) -> None:
        """It has them."""

    def change(self) -> None:
        raise AssertionError("there is no other world")

    def handler(self, value: object) -> Handler | None:
        return None


WORLD = SingleRank()
