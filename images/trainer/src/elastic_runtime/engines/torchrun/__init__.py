"""Scripts as ``torchrun`` runs them: each world has fresh processes, which begin at the script's newest checkpoint.

A script knows nothing of this package: it reads torchrun's environment variables and calls
``torch.distributed.init_process_group()``. When ranks come or go, a signal asks every process to write its checkpoint
and end, and the next world's are forked from the warm processes. When one is lost, the others are ended at once.

Nothing listens but Gloo and NCCL themselves: ``env://`` is served by the store that the engine ``torch`` has, in the
launcher, behind the agents' mutual TLS (:mod:`~elastic_runtime.engines.torchrun.rank`).
"""

from __future__ import annotations

from typing_extensions import override

from elastic_runtime.engines.base import Engine, RankRunner, Session, SessionCallbacks
from elastic_runtime.engines.torch import ENGINE as TORCH


class TorchrunEngine(Engine):
    """Engine for scripts that run under torchrun. Implements :class:`~elastic_runtime.engines.base.Engine`."""

    name = "torchrun"
    world = "elastic_runtime.engines.torchrun.rank:WORLD"
    preload = (*TORCH.preload, "elastic_runtime.engines.torchrun.rank")

    @override
    def session(self, runner: RankRunner, address: str, port: int, callbacks: SessionCallbacks) -> Session:
        """Return a session that does not listen, so address and port are not used."""
        from elastic_runtime.engines.torchrun.session import TorchrunSession  # Ranks have no use for it.

        return TorchrunSession(runner, callbacks)


ENGINE = TorchrunEngine()
