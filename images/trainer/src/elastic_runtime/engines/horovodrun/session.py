"""Horovod's ranks in the session of the engine torchrun: see :mod:`elastic_runtime.engines.torchrun.session`."""

from __future__ import annotations

from elastic_runtime.engines.horovod.environment import RESTARTS, environment_of, place_of
from elastic_runtime.engines.torchrun.environment import Place
from elastic_runtime.engines.torchrun.session import TorchrunSession


class HorovodrunSession(TorchrunSession):
    """Its ranks get what horovodrun gives them."""

    @staticmethod
    def environment(place: Place) -> dict[str, str]:
        """Return the environment of one process of the script."""
        return {
            **environment_of(place.rank_id, place.interface),
            **place_of(place.rank, place.size),
            RESTARTS: str(place.restarts),
        }
