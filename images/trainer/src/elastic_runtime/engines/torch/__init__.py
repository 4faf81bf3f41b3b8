"""torch.distributed, whose ranks go from one process group to the next in the processes that they are.

Nothing of it listens but Gloo and NCCL themselves: what a rank and its session in the launcher say to each other
(:mod:`~elastic_runtime.engines.torch.messages`) goes over the rank's line to its agent, and that agent's mutual TLS.
torch's own store, over which the ranks of a process group find each other, is kept there, too.
"""

from __future__ import annotations

from typing_extensions import override

from elastic_runtime.engines.base import Engine, RankRunner, Session, SessionCallbacks


class TorchEngine(Engine):
    """torch.distributed over Gloo or NCCL. Implements :class:`~elastic_runtime.engines.base.Engine`."""

    name = "torch"
    world = "elastic_runtime.engines.torch.world:WORLD"
    # torch.optim imports torch._dynamo lazily, which takes 1 to 2 s.
    preload = (
        *("torch", "torch.optim", "torch._dynamo", "torch.utils.data", "torch.distributed", "torch.nn.parallel"),
        *("elastic_runtime.torch.durable", "elastic_runtime.torch.global_batches"),
        "elastic_runtime.engines.torch.rank",
    )

    @override
    def session(self, runner: RankRunner, address: str, port: int, callbacks: SessionCallbacks) -> Session:
        """Return a session that does not listen, so address and port are not used."""
        from elastic_runtime.engines.torch.session import TorchSession  # Ranks have no use for it.

        return TorchSession(runner, callbacks)


ENGINE = TorchEngine()
