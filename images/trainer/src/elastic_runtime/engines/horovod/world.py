"""The world of a rank, by the collectives of the Horovod that its script uses: torch's or TensorFlow's."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from elastic_runtime.engines.horovod import frameworks
from elastic_runtime.engines.horovod.frameworks import Framework
from elastic_runtime.world import Handler


class HorovodWorld:
    """Implements :class:`~elastic_runtime.world.World`."""

    @property
    def connected(self) -> bool:
        """See :class:`World`."""
        framework = frameworks.current()
        return framework is not None and bool(framework.calls.is_initialized())

    @property
    def name(self) -> str:
        """See :class:`World`."""
        return os.environ.get("HOROVOD_HOSTNAME", "")

    @property
    def rank(self) -> int:
        """See :class:`World`."""
        return int(_framework().calls.rank())

    @property
    def size(self) -> int:
        """See :class:`World`."""
        return int(_framework().calls.size())

    def prepare(self) -> None:
        """See :class:`World`."""
        from elastic_runtime.engines.horovod import rank

        rank.install()

    def enter(self) -> None:
        """``hvd.init()`` of torch's Horovod: see :mod:`elastic_runtime.torch.elastic`."""
        import horovod.torch

        horovod.torch.init()

    def run(self, function: Callable[..., Any], *, in_place: bool = False) -> Callable[..., Any]:  # noqa: ARG002
        """See :class:`World`. Horovod always calls it anew."""
        import horovod.torch.elastic

        wrapped: Callable[..., Any] = horovod.torch.elastic.run(function)
        return wrapped

    def barrier(self) -> None:
        """See :class:`World`."""
        _framework().barrier()

    def agrees(self) -> bool:
        """Always: Horovod has nothing by which its ranks could settle on another commit."""
        return True

    def maximum(self, numbers: Sequence[float]) -> list[float]:
        """See :class:`World`."""
        return _framework().maximum(numbers)

    def broadcast(self, tensors: Sequence[Any]) -> None:
        """See :class:`World`."""
        _framework().broadcast(tensors)

    def settle(self) -> None:
        """Horovod's collectives have ended when they return."""

    def change(self) -> None:
        """Always with a sync to follow."""
        from horovod.common.exceptions import HostsUpdatedInterrupt

        raise HostsUpdatedInterrupt(False)

    def handler(self, value: object) -> Handler | None:
        """What a script has registered with its framework's Horovod."""
        framework = frameworks.current()
        return framework.handler(value) if framework else None


def _framework() -> Framework:
    framework = frameworks.current()
    if framework is None:
        # As Horovod says it where it was imported and has no world.
        raise ValueError("Horovod has not been initialized; use hvd.init() of horovod.torch or horovod.tensorflow.")
    return framework


WORLD = HorovodWorld()
