"""Whether this rank trains outside of any world, so that nothing it learns reaches the others: the launcher hears once.

A world is what the run's engine has the script make: a process group, or that of ``hvd.init()`` or ``elastic.run``.
Training is seen by ``report()`` and by the steps of torch's optimizers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from elastic_runtime.protocol.rank_link import TrainsUnjoined, shared_link
from elastic_runtime.world import current_world

ENOUGH = 3
"""Steps, or reports: one or two may only give an optimizer its state, or try a model."""


class StepsWithout:
    """Counts the steps of a rank that has never had what it should train with.

    Args:
        has: whether it has that now: a world, or a state.
        tell: called at most once: at the step number :data:`ENOUGH`, if it had none at any before.
    """

    def __init__(self, has: Callable[[], bool], tell: Callable[[], None]) -> None:
        self._has, self._tell = has, tell
        self._steps, self._over = 0, False

    def stepped(self, steps: int = 1) -> None:
        """The script has made steps, or has reported something."""
        if self._over:
            return
        self._steps += steps
        if self._has():
            self._over = True
        elif self._steps >= ENOUGH:
            self._over = True
            self._tell()


def stepped() -> None:
    """For engines and :func:`~elastic_runtime.training.reporting.report`. Without an agent nothing happens."""
    if shared_link().connected:
        _shared().stepped()


@cache
def _shared() -> StepsWithout:
    return StepsWithout(lambda: current_world().connected, lambda: shared_link().send(TrainsUnjoined()))
