"""The world of a rank that is started for it, and ends with it."""

from __future__ import annotations

from typing_extensions import override

from elastic_runtime.engines.horovod.environment import PLACE
from elastic_runtime.engines.horovod.world import HorovodWorld
from elastic_runtime.engines.one_world import OneWorld


class HorovodrunWorld(OneWorld, HorovodWorld):
    """One world for this process, made by ``hvd.init()``."""

    size_variable = PLACE[1]

    @override
    def prepare(self) -> None:
        from elastic_runtime.engines.horovod import rank

        rank.install(one_world=True)


WORLD = HorovodrunWorld()
