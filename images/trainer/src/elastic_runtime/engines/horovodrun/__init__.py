"""Scripts as ``horovodrun`` runs them without elastic options: each world has fresh processes.

The session is that of the engine ``torchrun`` (:mod:`elastic_runtime.engines.torchrun.session`): a signal asks every
process to write its checkpoint and end, and the next world's are forked from the warm processes. The ranks are those of
the engine ``horovod``, adapted likewise, but for worlds that follow each other.
"""

from __future__ import annotations

from typing_extensions import override

from elastic_runtime.engines.base import RankRunner, Session, SessionCallbacks
from elastic_runtime.engines.horovod import HorovodEngine, check_built


class HorovodrunEngine(HorovodEngine):
    """Engine for Horovod's scripts without an elastic state."""

    name = "horovodrun"
    world = "elastic_runtime.engines.horovodrun.world:WORLD"

    @override
    def session(self, runner: RankRunner, address: str, port: int, callbacks: SessionCallbacks) -> Session:
        """Raise InvalidSettings if Horovod is not installed."""
        from elastic_runtime.engines.horovodrun.session import HorovodrunSession  # Ranks have no use for it.

        check_built()
        return HorovodrunSession(runner, callbacks)


ENGINE = HorovodrunEngine()
