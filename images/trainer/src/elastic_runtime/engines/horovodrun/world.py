"""The world of a rank that is started for it, and ends with it."""

from __future__ import annotations

import os

from typing_extensions import override

from elastic_runtime.engines.horovod.environment import PLACE
from elastic_runtime.engines.horovod.world import HorovodWorld


class HorovodrunWorld(HorovodWorld):
    """One world for this process, made by ``hvd.init()``."""

    @override
    def prepare(self) -> None:
        from elastic_runtime.engines.horovod import rank

        rank.install(one_world=True)

    @property
    @override
    def connected(self) -> bool:
        """Also where the world is this rank alone: scripts without Horovod train there, too."""
        return super().connected or os.environ.get(PLACE[1]) == "1"

    @property
    @override
    def rank(self) -> int:
        return super().rank if super().connected else 0

    @property
    @override
    def size(self) -> int:
        return super().size if super().connected else 1


WORLD = HorovodrunWorld()
