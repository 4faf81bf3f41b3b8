"""The way from a thread into the process's event loop."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from elastic_training.concurrency import bridge


class Interrupted(BaseException):
    """As Ctrl-C, or Airflow's timeout."""


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    bridge.close()


async def where() -> tuple[int, asyncio.AbstractEventLoop]:
    return threading.get_ident(), asyncio.get_running_loop()


def test_all_callers_share_one_loop_in_a_thread_of_its_own() -> None:
    with ThreadPoolExecutor(8) as pool:
        met = set(pool.map(lambda _: bridge.run(where()), range(32)))
    assert len(met) == 1
    assert next(iter(met))[0] != threading.get_ident()


def test_what_the_coroutine_raises_is_the_callers() -> None:
    async def fail() -> None:
        raise ValueError("so it is")

    with pytest.raises(ValueError, match="so it is"):
        bridge.run(fail())


def test_the_callers_context_is_the_coroutines() -> None:
    word: contextvars.ContextVar[str] = contextvars.ContextVar("word")
    word.set("of the caller")

    async def read() -> str:
        return word.get()

    assert bridge.run(read()) == "of the caller"


def test_an_interrupted_caller_leaves_when_the_coroutine_has_been_cancelled() -> None:
    ends: list[str] = []

    async def train() -> None:
        try:
            os.kill(os.getpid(), signal.SIGUSR1)
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.sleep(0)
            ends.append("cancelled")

    def interrupt(*_: Any) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(Interrupted):
            bridge.run(train())
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert ends == ["cancelled"]
    assert bridge.run(where())  # The loop itself goes on.


def test_a_caller_interrupted_before_it_waits_leaves_no_coroutine_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    submit = asyncio.run_coroutine_threadsafe

    async def train() -> None:
        await asyncio.get_running_loop().create_future()

    async def tasks() -> int:
        return len(asyncio.all_tasks())

    def interrupted(*arguments: Any) -> Any:
        submit(*arguments)
        raise Interrupted

    before = bridge.run(tasks())
    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
        with pytest.raises(Interrupted):
            bridge.run(train())

    assert bridge.run(tasks()) == before


def test_a_caller_hears_of_a_signal_that_another_thread_was_given() -> None:
    def interrupt(*_: object) -> None:
        raise Interrupted

    waits = threading.Event()

    async def forever() -> None:
        waits.set()
        await asyncio.Event().wait()

    def send() -> None:
        assert waits.wait(10)
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    bridge.run(where())  # Its thread, and the sender, take the signal, which the main thread does not.
    sender = threading.Thread(target=send)
    sender.start()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        with pytest.raises(Interrupted):
            bridge.run(forever())
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
        signal.signal(signal.SIGUSR1, before)
        sender.join()


def test_the_handler_of_a_signal_may_come_by_while_its_thread_waits() -> None:
    """As Airflow's, which calls an operator's on_kill in the thread whose execute waits for the training."""
    asked = asyncio.Event()

    async def ask() -> None:
        asked.set()

    async def train() -> str:
        os.kill(os.getpid(), signal.SIGUSR1)
        await asked.wait()
        return "ended"

    before = signal.signal(signal.SIGUSR1, lambda *_: bridge.run(ask()))
    try:
        assert bridge.run(train()) == "ended"
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_loop_that_would_wait_for_itself_is_told() -> None:
    async def again() -> None:
        bridge.run(where())

    with pytest.raises(RuntimeError, match="await the coroutine"):
        bridge.run(again())


def test_only_its_own_loop_is_the_bridges() -> None:
    async def ask() -> bool:
        return bridge.bridged()

    assert bridge.run(ask())
    assert not asyncio.run(ask())


def test_a_forked_child_has_a_loop_of_its_own() -> None:
    bridge.run(where())
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, str(bridge.run(where())[0] != 0).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        assert answer.read() == "True"
    os.waitpid(child, 0)


def test_closed_it_can_be_used_again() -> None:
    first = bridge.run(where())
    bridge.close()
    bridge.close()
    assert bridge.run(where())[1] is not first[1]
