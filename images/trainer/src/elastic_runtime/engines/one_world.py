"""A rank whose process is in one world alone, and ends with it."""

from __future__ import annotations

import os
from typing import ClassVar

from typing_extensions import override

from elastic_runtime.world import World


class OneWorld(World):
    """Also connected where the world is this rank alone: its script may make no group of ranks then.

    To be inherited from before the engine's own world.
    """

    size_variable: ClassVar[str]
    """Environment variable that has the world's size."""

    @property
    @override
    def connected(self) -> bool:
        return super().connected or os.environ.get(self.size_variable) == "1"  # type: ignore[safe-super]  # the engine's

    @property
    @override
    def rank(self) -> int:
        return super().rank if super().connected else 0  # type: ignore[safe-super]  # the same

    @property
    @override
    def size(self) -> int:
        return super().size if super().connected else 1  # type: ignore[safe-super]  # the same
