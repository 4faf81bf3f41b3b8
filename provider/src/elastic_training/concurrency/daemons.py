"""Calls that block, each in a daemon thread of its own: nobody waits for one when the process ends, or for too long."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

T = TypeVar("T")


class _Daemons(Executor):
    """A thread for each call, and no pool that others need."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run the function in a daemon thread."""
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()  # So that nobody can take it back any more.

        def work() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001  # it is whoever awaits it who has to know
                future.set_exception(error)

        threading.Thread(target=work, name="elastic-training daemon", daemon=True).start()
        return future


_daemons = _Daemons()


def in_daemon(function: Callable[..., T], /, *args: Any, **kwargs: Any) -> asyncio.Future[T]:
    """Call it in a thread of its own, with the log of this task; await what is returned, or leave it."""
    return asyncio.get_running_loop().run_in_executor(_daemons, _with_context(function, *args, **kwargs))


def within(seconds: float, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    """Call it in a thread of its own, and wait for it from this one.

    Raises:
        TimeoutError: it has not returned within so many seconds. Its thread goes on, and what it returns is lost.
    """
    return _daemons.submit(_with_context(function, *args, **kwargs)).result(max(seconds, 0.0))


def _with_context(function: Callable[..., T], /, *args: Any, **kwargs: Any) -> Callable[[], T]:
    return functools.partial(contextvars.copy_context().run, function, *args, **kwargs)
