"""An engine in 400 lines of plain Python: whatever its ranks tell each other goes through a hub in the launcher."""

from __future__ import annotations

from elastic_runtime.engines.base import RankRunner, Session, SessionCallbacks


class HubEngine:
    """Implements :class:`~elastic_runtime.engines.base.Engine`."""

    name = "hub"
    preload = ("hub_engine.rank",)
    world = "hub_engine.rank:WORLD"

    def session(self, runner: RankRunner, address: str, port: int, callbacks: SessionCallbacks) -> Session:
        from hub_engine.session import HubSession  # Ranks have no use for it.

        return HubSession(runner, address, port, callbacks)


ENGINE = HubEngine()
