"""Stand-in for Evaluate: counts what it is given."""

from __future__ import annotations

from typing import Any


class Metric:
    """How many predictions there were."""

    def __init__(self) -> None:
        self._count = 0

    def add_batch(self, predictions: Any, references: Any) -> None:
        assert len(predictions) == len(references)
        self._count += len(predictions)

    def compute(self) -> dict[str, int]:
        return {"count": self._count}


def load(*_name: str) -> Metric:
    return Metric()
