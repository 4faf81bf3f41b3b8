"""From a thread into asynchronous code: one event loop per process, in a thread of its own, for operators and sensors.

It lives as long as the process, so that clients and watches that belong to a loop are opened once and not for every
call. Triggers have a loop already, and await. A caller may be interrupted at any line, by Ctrl-C, by Airflow's timeout
or by the handler of a signal that itself comes here (``on_kill``): the coroutine is then cancelled, while the loop and
whatever else it runs goes on.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from contextlib import AsyncExitStack
from typing import Any, Generic, TypeVar

from asgiref.sync import sync_to_async

T = TypeVar("T")
_LOOK = 0.5
"""Seconds between two looks of a waiting thread whether its process was sent a signal."""
_FAREWELL = 10.0
"""Seconds that a cancelled coroutine has to end before its caller goes on without it."""


class _Bridge:
    """A thread with a running loop."""

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._stop = asyncio.Event()
        self.thread = threading.Thread(target=self._serve, name="elastic-training bridge", daemon=True)
        self.thread.start()
        self._ready.wait()

    def _serve(self) -> None:
        with asyncio.Runner() as runner:
            self.loop = runner.get_loop()
            runner.run(self._until_stopped())

    async def _until_stopped(self) -> None:
        async with AsyncExitStack() as self.kept:
            self._ready.set()
            await self._stop.wait()

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self.thread.join()


_lock = threading.RLock()  # Reentrant: a signal's handler may come here while its thread is about to make the bridge.
_bridge: _Bridge | None = None


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Wait for a coroutine from a thread, as ``asyncio.run`` does, in the one loop of this process.

    Raises:
        RuntimeError: called from within that loop, where it would wait for itself.
    """
    global _bridge
    with _lock:
        bridge = _bridge = _bridge or _Bridge()
    if threading.current_thread() is bridge.thread:
        coroutine.close()
        raise RuntimeError("the event loop would wait for itself: await the coroutine instead")
    call = _Call(coroutine)
    try:
        return _awaited(asyncio.run_coroutine_threadsafe(call.run(), bridge.loop))
    except BaseException:  # raised again: Ctrl-C and Airflow's timeout are none of Exception
        if not call.ended.is_set():  # It is the caller who was interrupted, maybe before it had the future.
            bridge.loop.call_soon_threadsafe(call.give_up)
            call.ended.wait(_FAREWELL)
        raise


def _awaited(future: Future[T]) -> T:
    """Its result, for a main thread that Ctrl-C or Airflow's timeout may interrupt.

    The system may give a signal to any thread. Python's handler runs in the main one, which does not wake up for it
    where it waits for a lock: it would never hear of it.
    """
    while not future.done():
        wait([future], timeout=_LOOK)
    return future.result()


class _Call(Generic[T]):
    """A coroutine that its caller may give up at any line, begun or not."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._task: asyncio.Task[Any] | None = None
        self._given_up = False
        self.ended = threading.Event()

    async def run(self) -> T:
        self._task = asyncio.current_task()
        try:
            if self._given_up:
                self._coroutine.close()
                raise asyncio.CancelledError
            return await self._coroutine
        finally:
            self.ended.set()

    def give_up(self) -> None:
        self._given_up = True
        if self._task is not None:
            self._task.cancel()


def bridged() -> AsyncExitStack | None:
    """Return the stack that ends with the running event loop, if that loop is the bridge's.

    Returns:
        None in a triggerer, whose loop is Airflow's.
    """
    return _bridge.kept if _bridge is not None and asyncio.get_running_loop() is _bridge.loop else None


async def ask_airflow(function: Callable[..., T], *arguments: Any) -> T:
    """Call what asks Airflow and blocks, from whichever event loop.

    In a triggerer as Airflow's own triggers do: through other threads, 3.0 and 3.1 answer on another loop, or never.
    """
    if bridged():
        return await asyncio.to_thread(function, *arguments)
    return await sync_to_async(function)(*arguments)


def close() -> None:
    """End the loop and its thread, if they were begun; for tests. The next :func:`run` begins anew."""
    global _bridge
    with _lock:
        bridge, _bridge = _bridge, None
    if bridge is not None:
        bridge.close()


def _forget_in_child() -> None:
    # The thread stayed with the parent, and perhaps held the lock.
    global _bridge, _lock
    _bridge, _lock = None, threading.RLock()


os.register_at_fork(after_in_child=_forget_in_child)
