"""An event loop on which waiting takes no time: when nothing is left to do, its clock jumps to the next timer."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from contextlib import nullcontext
from typing import Any, TypeVar

try:
    from asgiref.sync import ThreadSensitiveContext
except ImportError:  # The runtime's environment has none, and needs none.
    ThreadSensitiveContext = nullcontext

T = TypeVar("T")
_BUSY = 0.005
"""Real seconds between two looks while a thread works for the loop: its end is no timer that one could jump to."""
_STUCK = 10.0
"""Real seconds of nothing to wait for."""


class _Jumping(selectors.DefaultSelector):  # type: ignore[misc, valid-type]  # an alias, of the platform's best
    """A selector that moves the clock instead of sleeping."""

    now = 0.0
    working = 0

    def select(self, timeout: float | None = None) -> Any:
        if (ready := super().select(0)) or timeout == 0:  # 0: the loop has something to do.
            return ready
        if self.working:
            return super().select(_BUSY)
        if timeout is not None:
            self.now += timeout
        elif not (ready := super().select(_STUCK)):  # As when the loop waits for its threads to end.
            raise AssertionError("the loop would wait for ever: no timer, no thread, nothing to read")
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module; ``time()`` starts at 0."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        self._jumping.working += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(lambda _: self._done())
        return future

    def _done(self) -> None:
        self._jumping.working -= 1


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """As ``asyncio.run``."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(_without_a_thread_left(main))


async def _without_a_thread_left(main: Coroutine[Any, Any, T]) -> T:
    async with ThreadSensitiveContext():  # Else asgiref keeps its thread for the next time.
        return await main
