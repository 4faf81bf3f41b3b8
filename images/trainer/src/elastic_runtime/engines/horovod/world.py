"""The world of a rank, by the collectives of the Horovod that its script uses: torch's or TensorFlow's."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from typing_extensions import override

from elastic_runtime.engines.horovod import frameworks
from elastic_runtime.engines.horovod.frameworks import Framework
from elastic_runtime.world import Handler, World


class HorovodWorld(World):
    """Horovod's world."""

    @property
    @override
    def connected(self) -> bool:
        framework = frameworks.current()
        return framework is not None and bool(framework.calls.is_initialized())

    @property
    @override
    def name(self) -> str:
        return os.environ.get("HOROVOD_HOSTNAME", "")

    @property
    @override
    def rank(self) -> int:
        return int(_framework().calls.rank())

    @property
    @override
    def size(self) -> int:
        return int(_framework().calls.size())

    @override
    def prepare(self) -> None:
        from elastic_runtime.engines.horovod import rank

        rank.install()

    def enter(self) -> None:
        """``hvd.init()`` of torch's Horovod: see :mod:`elastic_runtime.torch.elastic`."""
        import horovod.torch

        horovod.torch.init()

    @override
    def run(self, function: Callable[..., Any], *, in_place: bool = False) -> Callable[..., Any]:
        """Run ``training``, which Horovod calls again in every world."""
        import horovod.torch.elastic

        wrapped: Callable[..., Any] = horovod.torch.elastic.run(function)
        return wrapped

    @override
    def barrier(self) -> None:
        _framework().barrier()

    def agrees(self) -> bool:
        """Always: Horovod has nothing by which its ranks could settle on another commit."""
        return True

    @override
    def maximum(self, numbers: Sequence[float]) -> list[float]:
        return _framework().maximum(numbers)

    @override
    def broadcast(self, tensors: Sequence[Any]) -> None:
        _framework().broadcast(tensors)

    def settle(self) -> None:
        """Horovod's collectives have ended when they return."""

    def change(self) -> None:
        """With a sync to follow, unless the next world needs none."""
        from horovod.common.exceptions import HostsUpdatedInterrupt

        raise HostsUpdatedInterrupt(False)

    def handler(self, value: object) -> Handler | None:
        """Return the handler that a script has registered with its framework's Horovod."""
        framework = frameworks.current()
        return framework.handler(value) if framework else None


def _framework() -> Framework:
    framework = frameworks.current()
    if framework is None:
        # As Horovod says it where it was imported and has no world.
        raise ValueError("Horovod has not been initialized; use hvd.init() of horovod.torch or horovod.tensorflow.")
    return framework


WORLD = HorovodWorld()
